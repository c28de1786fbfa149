"""Score multiple-choice questions with lm-evaluation-harness.

`benchmarks.harness` runs this script in the environment .peers/lm-eval. The script reads JSON from standard
input and writes {task: results} to standard output.
"""

import json
import os
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}

import lm_eval
from lm_eval.tasks import TaskManager

METRICS = ("acc", "acc_norm", "acc_bytes", "acc_mutual_info")


def main() -> None:
    """Print the log-probabilities and the metrics of each question as one line of JSON."""
    given = json.load(sys.stdin)
    with tempfile.TemporaryDirectory() as folder:
        for name, rows in given["tasks"].items():
            write_task(Path(folder), name, rows)
        found = lm_eval.simple_evaluate(
            "hf",
            {"pretrained": given["model"], "dtype": "float32"},
            tasks=list(given["tasks"]),
            task_manager=TaskManager(include_path=folder),
            batch_size=8,
            device="cpu",
            bootstrap_iters=0,
        )
    values = {
        name: [
            {"logprobs": [float(pair[0][0]) for pair in one["resps"]], **{metric: one[metric] for metric in METRICS}}
            for one in sorted(samples, key=lambda sample: sample["doc_id"])
        ]
        for name, samples in found["samples"].items()
    }
    print(json.dumps({"version": version("lm_eval"), "values": values}))


def write_task(folder: Path, name: str, rows: list[dict]) -> None:
    """Write a task's YAML file and its data. The YAML file contains JSON, which is valid YAML."""
    data = folder / f"{name}.jsonl"
    data.write_text("\n".join(map(json.dumps, rows)))
    task = {
        "task": name,
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(data)}},
        "test_split": "test",
        "output_type": "multiple_choice",
        "doc_to_text": "{{context}}",
        "doc_to_choice": "{{choices}}",
        "doc_to_target": "target",
        "metric_list": [{"metric": metric} for metric in METRICS],
    }
    (folder / f"{name}.yaml").write_text(json.dumps(task))


if __name__ == "__main__":
    main()
