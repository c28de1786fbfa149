"""Write a log with lm-evaluation-harness, as test data for `python -m extract import`.

Run this script in the environment .peers/lm-eval.

Arguments: a JSON Lines file of questions (id, text, references, group), the folder of a model, the folder for the log,
and the number of answers to each question.
"""

import json
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

EXAMPLES = "Question: What is the capital of France?\nAnswer: Paris\nQuestion: What is 3 plus 2?\nAnswer: 5\n"


def main() -> None:
    """Ask every question at temperature 0.7. Score the first answer (whole and shortened) and the majority vote."""
    questions, model, folder, repeats = sys.argv[1:]
    short = {"function": "regex", "regex_pattern": "\\s*([^\n.]+)"}
    task = {
        "task": "facts",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": questions}},
        "test_split": "test",
        "output_type": "generate_until",
        "doc_to_text": f"{EXAMPLES}Question: {{{{text}}}}\nAnswer:",
        "doc_to_target": "references",
        "repeats": int(repeats),
        "generation_kwargs": {"until": ["\n"], "do_sample": True, "temperature": 0.7, "max_gen_toks": 16},
        "filter_list": [
            {"name": "none", "filter": [{"function": "take_first"}]},
            {"name": "short", "filter": [short, {"function": "take_first"}]},
            {"name": "majority", "filter": [short, {"function": "majority_vote"}, {"function": "take_first"}]},
        ],
        "metric_list": [
            {"metric": "exact_match", "ignore_case": True, "ignore_punctuation": True, "higher_is_better": True},
        ],
    }
    with TemporaryDirectory() as tasks:
        (Path(tasks) / "facts.yaml").write_text(json.dumps(task), encoding="utf-8")  # JSON is valid YAML
        options = {
            "--model": "hf",
            "--model_args": f"pretrained={model},dtype=float32",
            "--tasks": "facts",
            "--include_path": tasks,
            "--output_path": folder,
            "--device": "cpu",
            "--batch_size": "16",
        }
        command = [
            sys.executable,
            "-m",
            "lm_eval",
            "run",
            "--log_samples",
            *(x for pair in options.items() for x in pair),
        ]
        subprocess.run(command, check=True)
    (file,) = Path(folder).rglob("results_*.json")
    results = json.loads(file.read_text(encoding="utf-8"))
    del results["pretty_env_info"], results["configs"]["facts"]["metadata"]["config_source"]
    file.write_text(json.dumps(results, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
