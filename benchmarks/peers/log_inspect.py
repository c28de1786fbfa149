"""Write a log with Inspect. Runs in .peers/inspect, to make test data for `python -m extract import`.

Arguments: a JSON Lines file of questions (id, text, references, group), the folder of a model, the folder for the log,
the number of epochs, and the format of the log (eval or json).
"""

import json
import sys
from pathlib import Path

from inspect_ai import Task, eval
from inspect_ai.dataset import Sample
from inspect_ai.scorer import includes, match
from inspect_ai.solver import generate, system_message


def main() -> None:
    """Ask every question once per epoch at temperature 0.7, and score the answers with two scorers."""
    questions, model, folder, epochs, form = sys.argv[1:]
    rows = map(json.loads, Path(questions).read_text(encoding="utf-8").splitlines())
    samples = [
        Sample(id=row["id"], input=row["text"], target=row["references"], metadata={"group": row["group"]})
        for row in rows
    ]
    setup = system_message("Answer in a few words, without a sentence around them.")
    task = Task(
        samples,
        setup=setup,
        solver=generate(),
        scorer=[includes(), match(location="any")],
        name="facts",
        epochs=int(epochs),
    )
    eval(
        task,
        model="hf/local",
        model_args={"model_path": model, "device": "cpu"},
        temperature=0.7,
        max_tokens=16,
        seed=1,
        log_dir=folder,
        log_format=form,
        display="plain",
    )


if __name__ == "__main__":
    main()
