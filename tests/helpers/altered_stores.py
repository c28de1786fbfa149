"""Alterations of a store by name: damage with the original checksums, and malicious changes with forged checksums."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from extract import Decoding, Question, Store
from extract.hashing import canonical_json, sha256_json
from extract.policy import Identity, ModelIdentity, Policy
from extract.questions.question import questions_hash
from extract.store.files import write_file
from extract.store.ragged import Ragged
from extract.store.shards import Block, SampleRange
from extract.store.verify import write_manifest
from tests.helpers.altering import bad_json_contents, bomb

#: A function that alters the store in a folder.
Alteration = Callable[[Path], object]
QUESTIONS = "questions.parquet"
SAMPLES = "samples/00001.000-002.parquet"
GRADES = "grades/coin/00001.000-002.parquet"
SIGNAL = "signals/hidden/question/00001.safetensors"
HIDDEN = "signals/hidden/question/*.safetensors"
FILES = {"questions": QUESTIONS, "samples": SAMPLES, "grades": GRADES, "signal": SIGNAL}


def make_store(folder: Path, seed: int = 0) -> Path:
    """Make a store of 20 questions in 3 blocks with two ranges of 2 answers, planted grades and 3 layers of width 4."""
    rng = np.random.default_rng(0)
    questions = [Question(id=f"q{i}", dataset="made", text=f"Say {i}.", references=("x",)) for i in range(20)]
    model = ModelIdentity("tiny", None, "a" * 64, "float32", "b" * 64, "c" * 64)
    policy = Policy(model, Decoding(max_new_tokens=3, seed=seed))
    store = Store.create(folder, Identity(policy, questions_hash(questions), block_size=8), questions)
    for block in range(3):
        for samples in (SampleRange(block, 0, 2), SampleRange(block, 2, 4)):
            ids = store.questions.ids(samples)
            keys = [{"question_id": id_, "sample": j} for id_ in ids for j in range(samples.start, samples.stop)]
            answer = {"token_ids": [5, 0], "text": "x", "logprobs": [-0.5, -1.0], "finish_reason": "stop"}
            store.samples.write(samples, [{**key, "prompt_tokens": 4, **answer} for key in keys])
            grades = [{**key, "right": bool(rng.random() < 0.5), "answer": "x"} for key in keys]
            store.grades.write("coin", samples, grades, "a coin")
        states = torch.from_numpy(rng.normal(size=(3, store.questions.n_rows(Block(block)), 4))).float()
        store.signals.write("hidden", Block(block), {f"{layer}/last_prompt": states[layer] for layer in range(3)})
    write_manifest(store)
    return folder


def add_tokens(folder: Path) -> Path:
    """Add a token signal for answers of 0 to 5 tokens. All answers in one range have no tokens."""
    store, rng = Store.open(folder), torch.Generator().manual_seed(0)
    for samples in store.samples.ranges():
        n_tokens = torch.randint(6, (store.questions.n_rows(samples),), generator=rng).tolist()
        if samples == SampleRange(2, 0, 2):
            n_tokens = [0] * len(n_tokens)
        tokens = Ragged.of([torch.rand(n, generator=rng) for n in n_tokens])
        shifted = tokens._replace(values=tokens.values + 1)
        store.signals.write("tokens", samples, {"2/entropy": tokens, "1/entropy": shifted})
    write_manifest(store)
    return folder


# With the original checksums


def content(file: str, change: Callable[[bytes], bytes]) -> Alteration:
    """Change the bytes of a file."""
    return lambda store: (store / file).write_bytes(change((store / file).read_bytes()))


def flip(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


def huge_header(data: bytes) -> bytes:
    return (2**50).to_bytes(8, "little") + data[8:]


def sidecar(**changes: Any) -> Alteration:
    def alter(store: Path) -> None:
        file = (store / SAMPLES).with_suffix(".json")
        file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))

    return alter


def delete(name: str) -> Alteration:
    return lambda store: (store / name).unlink()


def copy(source: str, target: str) -> Alteration:
    """Copy a file and its sidecar to another name."""

    def alter(store: Path) -> None:
        for ending in (Path(source).suffix, ".json"):
            shutil.copy((store / source).with_suffix(ending), (store / target).with_suffix(ending))

    return alter


def replace_by_other_store(*names: str) -> Alteration:
    """Replace files with those of a store that was made with a different seed."""

    def alter(store: Path) -> None:
        other = make_store(store.parent / "other", seed=1)
        for path in (path for name in names for path in other.glob(name)):
            shutil.copy(path, store / path.relative_to(other))

    return alter


def other_questions(store: Path) -> None:
    table = pq.read_table(store / QUESTIONS)
    other = Store.open(store).questions
    assert len(other) == table.num_rows
    sink = pa.BufferOutputStream()
    pq.write_table(table.take(list(range(19, -1, -1))), sink)
    write_file(store / QUESTIONS, sink.getvalue().to_pybytes())


def draw_again(store: Path) -> None:
    """Draw lost answers again after they were graded."""
    opened = Store.open(store)
    rows = opened.samples.read(SampleRange(1, 0, 2)).drop(["n_tokens"]).to_pylist()
    opened.samples.write(SampleRange(1, 0, 2), [{**row, "text": "y"} for row in rows])


def link_outside(name: str) -> Alteration:
    """Replace a file with a link to a copy outside the folder."""

    def alter(store: Path) -> None:
        shutil.move(store / name, store.parent / "elsewhere")
        (store / name).symlink_to(store.parent / "elsewhere")

    return alter


def identity(change: Callable[[dict[str, Any]], object], sealed: bool = True) -> Alteration:
    """Change the identity, and update its checksum if `sealed`."""

    def alter(store: Path) -> None:
        record = json.loads((store / "identity.json").read_text())
        change(record["of"])
        record["identity"] = sha256_json(record["of"]) if sealed else record["identity"]
        (store / "identity.json").write_text(json.dumps(record))

    return alter


#: Alterations by name, each with a text that the error message must contain.
ALTERATIONS: dict[str, tuple[str, Alteration]] = {
    **{f"{kind}: a flipped bit": (Path(file).name, content(file, flip)) for kind, file in FILES.items()},
    **{f"{kind}: truncated": (Path(file).name, content(file, lambda data: data[:-9])) for kind, file in FILES.items()},
    **{f"{kind}: emptied": (Path(file).name, content(file, lambda data: b"")) for kind, file in FILES.items()},
    "samples: lengthened": ("00001.000-002", content(SAMPLES, lambda data: data + b"more")),
    "samples: a pickle": ("00001.000-002", lambda store: (store / SAMPLES).write_bytes(bomb(store))),
    "signal: a pickle": ("00001.safetensors", lambda store: (store / SIGNAL).write_bytes(bomb(store))),
    "signal: a huge header": ("00001.safetensors", content(SIGNAL, huge_header)),
    "questions: missing": ("questions.parquet", delete(QUESTIONS)),
    "samples: missing": ("samples", delete(SAMPLES)),
    "grades: missing": ("graded", delete(GRADES)),
    "signal: missing": ("hidden", delete(SIGNAL)),
    "questions: no sidecar": ("questions.parquet", delete("questions.json")),
    "samples: no sidecar": ("samples", delete("samples/00001.000-002.json")),
    "grades: no sidecar": ("graded", delete("grades/coin/00001.000-002.json")),
    "signal: no sidecar": ("hidden", delete("signals/hidden/question/00001.json")),
    **{
        f"sidecar: {name}": (
            "00001.000-002",
            lambda store, data=data: (store / SAMPLES).with_suffix(".json").write_bytes(data),
        )
        for name, data in bad_json_contents().items()
    },
    "sidecar: a pickle": ("00001", lambda store: (store / SAMPLES).with_suffix(".json").write_bytes(bomb(store))),
    "sidecar: another size": ("00001.000-002", sidecar(size=3)),
    "sidecar: a size of 2**70": ("00001.000-002", sidecar(size=2**70)),
    "sidecar: a text for the size": ("00001.000-002", sidecar(size="3")),
    "sidecar: another checksum": ("00001.000-002", sidecar(sha256="0" * 64)),
    "sidecar: another key": ("00001.000-002", sidecar(path="../../secret")),
    "a foreign name": ("foo.parquet", copy(SAMPLES, "samples/foo.parquet")),
    "a name with a line break": ("b.parquet", copy(SAMPLES, "samples/a\nb.parquet")),
    "a block beyond the last": ("00009.000-002", copy(SAMPLES, "samples/00009.000-002.parquet")),
    "a range that is empty": ("00000.002-002", copy(GRADES, "grades/coin/00000.002-002.parquet")),
    "a range beyond all bounds": ("999999999", copy(SAMPLES, "samples/00000.000-999999999.parquet")),
    "overlapping ranges": ("00001.001-003", copy(SAMPLES, "samples/00001.001-003.parquet")),
    "samples of another block": ("00001.000-002", copy("samples/00000.000-002.parquet", SAMPLES)),
    "samples of another range": ("00001.000-002", copy("samples/00001.002-004.parquet", SAMPLES)),
    "grades of another block": ("00001.000-002", copy("grades/coin/00000.000-002.parquet", GRADES)),
    "grades of another grader": (
        "'coin', not by 'dice'",
        lambda store: (store / "grades/coin").rename(store / "grades/dice"),
    ),
    "grades of answers that were replaced": ("replaced", draw_again),
    "signal of another block": ("00001.safetensors", copy("signals/hidden/question/00000.safetensors", SIGNAL)),
    "signal of another store": ("00000.safetensors", replace_by_other_store("signals/hidden/question/*")),
    "questions of another store": ("questions.parquet", other_questions),
    "a grader's name with a space": (
        "'a b'",
        lambda store: shutil.copytree(store / "grades/coin", store / "grades/a b"),
    ),
    "a grader's name with a line break": (
        "'a\\nb'",
        lambda store: shutil.copytree(store / "grades/coin", store / "grades/a\nb"),
    ),
    **{
        f"{name}: a link outside": (Path(name).name, link_outside(name))
        for name in (QUESTIONS, SAMPLES, "samples/00001.000-002.json", GRADES, SIGNAL, "identity.json")
    },
    "samples: a folder that is a link outside": ("outside", link_outside("samples")),
    **{
        f"identity: {name}": ("identity.json", lambda store, data=data: (store / "identity.json").write_bytes(data))
        for name, data in bad_json_contents().items()
    },
    "identity: a pickle": ("identity.json", lambda store: (store / "identity.json").write_bytes(bomb(store))),
    "identity: another temperature": (
        "file was altered",
        identity(lambda of: of["policy"]["decoding"].update(temperature=0.1), sealed=False),
    ),
    "identity: a newer schema": ("schema 2", identity(lambda of: of.update(schema=2))),
    "identity: a key less": ("policy.model.dtype", identity(lambda of: of["policy"]["model"].pop("dtype"))),
    "identity: a model's path": ("model.id", identity(lambda of: of["policy"]["model"].update(id="../tiny"))),
}


# With matching checksums


def forge_table(file: str, change: Callable[[pa.Table], pa.Table]) -> Alteration:
    def alter(store: Path) -> None:
        sink = pa.BufferOutputStream()
        pq.write_table(change(pq.read_table(store / file)), sink)
        write_file(store / file, sink.getvalue().to_pybytes())

    return alter


def forge_value(file: str, column: str, value: Any) -> Alteration:
    """Put one value into all rows of a column."""

    def change(table: pa.Table) -> pa.Table:
        place = table.column_names.index(column)
        values = pa.array([value] * table.num_rows, table.schema.field(column).type)
        return table.set_column(place, table.schema.field(column), values)

    return forge_table(file, change)


def forge_questions(column: str, value: Any) -> Alteration:
    """Set a column of the questions to one value, and update the store's identity to match."""

    def alter(store: Path) -> None:
        forge_value(QUESTIONS, column, value)(store)
        rows = pq.read_table(store / QUESTIONS).to_pylist()
        identity(lambda of: of.update(questions=sha256_json(rows)))(store)

    return alter


def forge_bytes(file: str, change: Callable[[bytes], bytes]) -> Alteration:
    return lambda store: write_file(store / file, change((store / file).read_bytes()))


def forge_signal(pattern: str, change: Callable[[dict[str, Any]], object], **provenance: Any) -> Alteration:
    """Change the tensors and the provenance record of all files of a signal."""

    def alter(store: Path) -> None:
        for file in store.glob(pattern):
            with safe_open(file, framework="pt") as opened:
                record = json.loads(opened.metadata()["store"])
            tensors = load_file(file)
            change(tensors)
            save_file(tensors, file, {"store": canonical_json({**record, **provenance})})
            write_file(file, file.read_bytes())

    return alter


def forge_metadata(text: str) -> Alteration:
    """Replace the provenance record of the hidden states with a text."""

    def alter(store: Path) -> None:
        for file in store.glob(HIDDEN):
            save_file(load_file(file), file, {"store": text})
            write_file(file, file.read_bytes())

    return alter


def forge_hidden(key: str, make: Callable[[int], torch.Tensor]) -> Alteration:
    """Set the tensor `key` in all files of hidden states to the result of `make` for the number of rows."""
    return forge_signal(HIDDEN, lambda tensors: tensors.update({key: make(len(tensors["2/last_prompt"]))}))


def forge_header(**changes: Any) -> Alteration:
    """Change the description of the first tensor in a signal file's header."""

    def change(data: bytes) -> bytes:
        length = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + length])
        header["0/last_prompt"] |= changes
        text = json.dumps(header).encode()
        return len(text).to_bytes(8, "little") + text + data[8 + length :]

    return forge_bytes(SIGNAL, change)


def annotate(table: pa.Table) -> pa.Table:
    """Add the metadata that pyarrow before 14.0.1 unpickles when it reads the column."""
    spell = {"ARROW:extension:name": "arrow.py_extension_type", "ARROW:extension:metadata": "cos\nmkdir\n."}
    return table.cast(table.schema.set(0, table.schema.field(0).with_metadata(spell)))


def footer(length: int) -> Callable[[bytes], bytes]:
    return lambda data: data[:-8] + length.to_bytes(4, "little") + data[-4:]


FORGED: dict[str, Alteration] = {
    "identity: another key": identity(lambda of: of["policy"].update(more=1)),
    "identity: blocks of no question": identity(lambda of: of.update(block_size=0)),
    "samples: a pickle": lambda store: write_file(store / SAMPLES, bomb(store)),
    "signal: a pickle": lambda store: write_file(store / SIGNAL, bomb(store)),
    "samples: a footer of 2 GB": forge_bytes(SAMPLES, footer(2**31 - 1)),
    "samples: a footer of 3 bytes": forge_bytes(SAMPLES, footer(3)),
    "samples: an extension type": forge_table(SAMPLES, annotate),
    "samples: no column of texts": forge_table(SAMPLES, lambda table: table.drop_columns(["text"])),
    "samples: one row": forge_table(SAMPLES, lambda table: table.slice(0, 1)),
    "samples: a question that is not there": forge_value(SAMPLES, "question_id", "../../q0"),
    "samples: nulls for token ids": forge_value(SAMPLES, "token_ids", [None, 3]),
    "samples: one token less": forge_value(SAMPLES, "token_ids", [5]),
    "samples: log-probabilities that are NaN": forge_value(SAMPLES, "logprobs", [float("nan"), 1.0]),
    "samples: a finish reason": forge_value(SAMPLES, "finish_reason", "os.system"),
    "samples: prompts of −5 tokens": forge_value(SAMPLES, "prompt_tokens", -5),
    "grades: a sample that is not there": forge_value(GRADES, "sample", -1),
    "grades: no metadata": forge_table(GRADES, lambda table: table.replace_schema_metadata(None)),
    "grades: metadata that is no text": forge_table(
        GRADES, lambda table: table.replace_schema_metadata({b"grader": b"\xff"})
    ),
    "questions: no metadata": forge_questions("meta", None),
    "questions: metadata that is no JSON": forge_questions("meta", "{"),
    "questions: nested metadata": forge_questions("meta", "[" * 10**5),
    "questions: a kind that is not there": forge_questions("kind", "essay"),
    "questions: the same id": forge_questions("question_id", "q3"),
    "questions: no text and no messages": forge_questions("text", ""),
    "questions: a list of nulls": forge_questions("references", [None]),
    "signal: a shape of 10**18": forge_header(shape=[10**9, 10**9]),
    "signal: a negative shape": forge_header(shape=[-1, 4]),
    "signal: offsets outside the file": forge_header(data_offsets=[0, 10**12]),
    "signal: an unknown dtype": forge_header(dtype="F1024"),
    "signal: a huge header": forge_bytes(SIGNAL, huge_header),
    "signal: a nested header": forge_bytes(SIGNAL, lambda data: (10**5).to_bytes(8, "little") + b"[" * 10**5),
    "signal: a key that is a path": forge_hidden("../../etc", lambda n: torch.zeros(n, 4)),
    "signal: a key without a layer": forge_hidden("last_prompt", lambda n: torch.zeros(n, 4)),
    "signal: whole numbers": forge_hidden("0/last_prompt", lambda n: torch.zeros(n, 4, dtype=torch.int64)),
    "signal: not a single dimension": forge_hidden("0/last_prompt", lambda n: torch.tensor(1.0)),
    "signal: several dimensions": forge_hidden("0/last_prompt", lambda n: torch.zeros(n, 2, 2)),
    "signal: another width": forge_hidden("0/last_prompt", lambda n: torch.zeros(n, 5)),
    "signal: no width": forge_hidden("0/last_prompt", lambda n: torch.zeros(n, 0)),
    "signal: infinite values": forge_hidden("0/last_prompt", lambda n: torch.full((n, 4), torch.inf)),
    "signal: offsets of nothing": forge_hidden("9/x.offsets", lambda n: torch.zeros(n + 1)),
    "signal: tokens instead of rows": forge_hidden("1/last_prompt.offsets", lambda n: torch.arange(n + 1)),
    "signal: no tensors": forge_signal(HIDDEN, lambda tensors: tensors.clear()),
    "signal: metadata that is no object": forge_metadata("[]"),
    "signal: metadata that is no JSON": forge_metadata("{"),
    "signal: a number for the settings": forge_signal(HIDDEN, lambda tensors: None, how=3),
    "identity: an unknown sampler": identity(lambda of: of.update(sampler="server")),
}
