"""Write an Inspect log in both formats, .eval and .json, as test data for `python -m extract import`.

Run this script in the environment .peers/inspect.

Arguments: a JSON Lines file of questions (id, text, references, group), the folder of a model, the folder for the log,
and the number of epochs.
"""

import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from inspect_ai import Task
from inspect_ai import eval as evaluate
from inspect_ai.dataset import Sample
from inspect_ai.log import write_eval_log
from inspect_ai.scorer import includes, match
from inspect_ai.solver import generate, system_message


def main() -> None:
    """Ask every question once per epoch at temperature 0.7, and score the answers with two scorers."""
    questions, model, folder, epochs = sys.argv[1:]
    rows = map(json.loads, Path(questions).read_text(encoding="utf-8").splitlines())
    samples = [
        Sample(id=row["id"], input=row["text"], target=row["references"], metadata={"group": row["group"]})
        for row in rows
    ]
    task = Task(
        samples,
        setup=system_message("Answer in a few words, without a sentence around them."),
        solver=generate(),
        scorer=[includes(), match(location="any")],
        name="facts",
        epochs=int(epochs),
    )
    options = {"model": "hf/local", "model_args": {"model_path": model, "device": "cpu"}, "display": "plain"}
    with TemporaryDirectory() as logs:
        log = evaluate(task, temperature=0.7, max_tokens=16, seed=1, log_dir=logs, **options)[0]
        for sample in log.samples:
            sample.events = []
        log.location = ""
        for form in ("eval", "json"):
            write_eval_log(log, f"{folder}/inspect.{form}")


if __name__ == "__main__":
    main()
