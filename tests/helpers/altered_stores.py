"""Alterations of a store, by name: each takes a store's folder and a seeded generator, and says what a refusal may name."""

from __future__ import annotations

import json
import random
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
from tests.helpers.altering import Alteration, bad_json, bomb, lie, set_field

#: What a refusal says of a file that is there no more, by the folder that it was in.
GONE = {"questions.parquet": "questions.parquet", "samples": "samples", "grades": "grade", "signals": "signal"}


def make_store(folder: Path) -> Path:
    """A store of 20 questions in 3 blocks with two parts of 2 answers, planted grades and 3 layers of width 4."""
    rng = np.random.default_rng(0)
    questions = [Question(id=f"q{i}", dataset="made", text=f"Say {i}.", references=("x",)) for i in range(20)]
    model = ModelIdentity("tiny", None, "a" * 64, "float32", "b" * 64, "c" * 64)
    policy = Policy(model, Decoding(max_new_tokens=3))
    store = Store.create(folder, Identity(policy, questions_hash(questions), block_size=8), questions)
    for block in range(3):
        for part in (SampleRange(block, 0, 2), SampleRange(block, 2, 4)):
            keys = [(q.id, j) for q in store.questions.block(Block(block)) for j in range(part.start, part.stop)]
            answer = {"token_ids": [5, 0], "text": "x", "logprobs": [-0.5, -1.0], "finish_reason": "stop"}
            store.samples.write(part, [{"question_id": q, "sample": j, "prompt_tokens": 4, **answer} for q, j in keys])
            grades = [
                {"question_id": q, "sample": j, "right": bool(rng.random() < 0.5), "answer": "x"} for q, j in keys
            ]
            store.grades.write("coin", part, grades, "a coin")
        n = len(store.questions.block(Block(block)))
        states = torch.from_numpy(rng.normal(size=(3, n, 4))).float()
        store.signals.write("hidden", Block(block), {f"{layer}/last_prompt": states[layer] for layer in range(3)})
    write_manifest(store)
    return folder


def add_tokens(folder: Path) -> Path:
    """A token signal of the answers of such a store, of 0 to 5 tokens each; the answers of one part have none at all."""
    store, rng = Store.open(folder), torch.Generator().manual_seed(0)
    for part in store.samples.ranges():
        rows = [
            torch.rand(int(torch.randint(6, (), generator=rng)), generator=rng)
            for _ in range(store.questions.n_rows(part))
        ]
        if part == SampleRange(2, 0, 2):
            rows = [torch.zeros(0)] * len(rows)
        tokens = Ragged.of(rows)
        store.signals.write(
            "tokens", part, {"2/entropy": tokens, "1/entropy": tokens._replace(values=tokens.values + 1)}
        )
    write_manifest(store)
    return folder


def data_file(store: Path, rng: random.Random, pattern: str = "*") -> Path:
    return rng.choice(sorted(p for p in store.rglob(pattern) if p.suffix in (".parquet", ".safetensors")))


def maybe_vouched(path: Path, content: bytes, rng: random.Random) -> str:
    """Write other content, in half of the cases with a voucher that fits it."""
    if rng.random() < 0.5:
        write_file(path, content)
    else:
        path.write_bytes(content)
    return path.name


def edit_rows(change: Callable[[list[dict[str, Any]], random.Random], Any], pattern: str = "samples/*") -> Alteration:
    """An alteration of the rows of a table, in place, with a voucher that fits."""

    def alter(store: Path, rng: random.Random) -> str:
        return edit_table(lambda table, rng: _changed(table, change, rng), pattern)(store, rng)

    return alter


def _changed(table: pa.Table, change: Callable[..., Any], rng: random.Random) -> pa.Table:
    rows = table.to_pylist()
    change(rows, rng)
    return pa.Table.from_pylist(rows, schema=table.schema)


def edit_table(change: Callable[[pa.Table, random.Random], pa.Table], pattern: str = "samples/*") -> Alteration:
    """An alteration of a table, with a voucher that fits."""

    def alter(store: Path, rng: random.Random) -> str:
        path, sink = data_file(store, rng, pattern), pa.BufferOutputStream()
        pq.write_table(change(pq.read_table(path), rng), sink)
        write_file(path, sink.getvalue().to_pybytes())
        return path.name

    return alter


def set_one(column: str, *values: Any) -> Callable[[list[dict[str, Any]], random.Random], None]:
    """Put one of the values into one row."""

    def change(rows: list[dict[str, Any]], rng: random.Random) -> None:
        rng.choice(rows)[column] = rng.choice(values)

    return change


def other_rows(rows: list[dict[str, Any]], rng: random.Random) -> None:
    i, j = rng.sample(range(len(rows)), 2)
    rng.choice([lambda: rows.pop(i), lambda: rows.append(rows[i]), lambda: rows.__setitem__(i, rows[j]), rows.clear])()


def edit_signal(change: Callable[[dict[str, Any], random.Random], Any], **stamp: Any) -> Alteration:
    """An alteration of a block's tensors or of what it says to be, with a voucher that fits."""

    def alter(store: Path, rng: random.Random) -> str:
        path = data_file(store, rng, "*.safetensors")
        tensors = load_file(path)
        change(tensors, rng)
        stated = {"identity": Store.open(store).sha256, "signal": "hidden", "block": int(path.stem), **stamp}
        save_file(tensors, path, {"store": canonical_json(stated)})
        write_file(path, path.read_bytes())
        return path.name

    return alter


def some_tensor(make: Callable[[torch.Tensor, random.Random], torch.Tensor]) -> Callable[..., None]:
    def change(tensors: dict[str, Any], rng: random.Random) -> None:
        key = rng.choice(sorted(tensors))
        tensors[key] = make(tensors[key], rng).contiguous()

    return change


def broken_row(tensor: torch.Tensor, rng: random.Random) -> torch.Tensor:
    tensor[rng.randrange(len(tensor)), rng.randrange(4)] = rng.choice([torch.nan, torch.inf, -torch.inf])
    return tensor


def edit_tokens(change: Callable[[torch.Tensor, torch.Tensor, random.Random], Any]) -> Alteration:
    """An alteration of a part of the token signal, with a voucher that fits: of its values [sum of lengths] and offsets.

    `change` alters them in place or gives what stands for them: tensors by the ending of their key.
    """

    def alter(store: Path, rng: random.Random) -> str:
        path = store / f"signals/tokens/sample/0000{rng.randrange(2)}.000-002.safetensors"
        with safe_open(path, framework="pt") as file:
            stated = file.metadata()
        tensors = load_file(path)
        key = rng.choice(["1/entropy", "2/entropy"])
        values, offsets = tensors.pop(key), tensors.pop(f"{key}.offsets")
        held = change(values, offsets, rng) or {"": values, ".offsets": offsets}
        tensors |= {key + ending: tensor.contiguous() for ending, tensor in held.items()}
        save_file(tensors, path, stated)
        write_file(path, path.read_bytes())
        return path.name

    return alter


def first_long(offsets: torch.Tensor) -> int:
    """Where the first row begins that has several tokens."""
    return int(offsets[int((offsets.diff() > 1).nonzero()[0])])


def break_token(values: torch.Tensor, offsets: torch.Tensor, rng: random.Random) -> None:
    values[first_long(offsets) + rng.randrange(2)] = rng.choice([torch.nan, torch.inf, -torch.inf])


def swap_offsets(values: torch.Tensor, offsets: torch.Tensor, rng: random.Random) -> None:
    """Let one fall; the first and the last stay."""
    rises = (offsets[1:-2] < offsets[2:-1]).nonzero()[:, 0].tolist()
    row = 1 + rng.choice(rises)
    offsets[row], offsets[row + 1] = offsets[row + 1].item(), offsets[row].item()


def header_lies(pattern: str = "*.safetensors") -> Alteration:
    def alter(store: Path, rng: random.Random) -> str:
        path = data_file(store, rng, pattern)
        lie(path, rng)
        write_file(path, path.read_bytes())
        return path.name

    return alter


def footer_lies(store: Path, rng: random.Random) -> str:
    path = data_file(store, rng, "*.parquet")
    content = bytearray(path.read_bytes())
    content[-8:-4] = rng.choice([2**31 - 1, 2**32 - 1, len(content) * 2, 0, 3]).to_bytes(4, "little")
    write_file(path, bytes(content))
    return path.name


def repeated_text(rows: list[dict[str, Any]], rng: random.Random) -> None:
    """Kilobytes in the file, and in memory more than there is."""
    big = chr(97 + rng.randrange(26)) * 150_000_000
    for row in rows:
        row["text"] = big


def edit_identity(change: Callable[[dict[str, Any], random.Random], object], sealed: bool = True) -> Alteration:
    """An alteration of the identity, in most cases with the checksum that fits."""

    def alter(store: Path, rng: random.Random) -> str:
        file = store / "identity.json"
        record = json.loads(file.read_text())
        change(record["of"], rng)
        record["identity"] = sha256_json(record["of"]) if sealed else record["identity"]
        file.write_text(json.dumps(record))
        return "identity.json"

    return alter


def change_keys(record: dict[str, Any], rng: random.Random) -> None:
    """A key less, or one more, somewhere."""
    places = [record, record["policy"], record["policy"]["model"], record["policy"]["decoding"]]
    place = rng.choice(places)
    if rng.random() < 0.5:
        del place[rng.choice(sorted(key for key in place if key != "schema"))]
    else:
        place[rng.choice(["more", "../more", "__class__", ""])] = 1


def bad_voucher(store: Path, rng: random.Random) -> str:
    path = data_file(store, rng)
    good = json.loads(path.with_suffix(".json").read_text())
    bad = [
        {},
        {**good, "more": 1},
        {**good, "size": str(good["size"])},
        {**good, "sha256": None},
        {**good, "size": 1e9},
    ]
    if rng.random() < 0.5:
        path.with_suffix(".json").write_text(json.dumps(rng.choice(bad)))
    else:
        bad_json(path.parent, f"{path.stem}.json", rng)
    return path.stem


def foreign_file(store: Path, rng: random.Random) -> str:
    folder = rng.choice(["samples", "grades/coin"])
    names = ["foo", "00009.000-002", "00000.002-002", "00000.000-2", "00000.000-999999999999", "-1.000-002", "a\nb"]
    name = rng.choice(names)
    write_file(store / folder / f"{name}.parquet", data_file(store, rng, f"{folder}/*").read_bytes())
    return "a\\nb" if name == "a\nb" else name


def overlapping_part(store: Path, rng: random.Random) -> str:
    folder = rng.choice(["samples", "grades/coin"])
    name = rng.choice(["00001.001-003", "00001.000-004", "00001.003-005"])
    write_file(store / folder / f"{name}.parquet", (store / folder / "00001.000-002.parquet").read_bytes())
    return "00001"


def another_block(store: Path, rng: random.Random) -> str:
    folder, ending = rng.choice([("samples", ".000-002.parquet"), ("signals/hidden/question", ".safetensors")])
    source, target = rng.sample(["00000", "00001"], 2)
    write_file(store / folder / (target + ending), (store / folder / (source + ending)).read_bytes())
    return target + ending


def missing_file(store: Path, rng: random.Random) -> str:
    path = data_file(store, rng)
    (path if rng.random() < 0.5 else path.with_suffix(".json")).unlink()
    return GONE[path.relative_to(store).parts[0]]


def link_outside(store: Path, rng: random.Random) -> str:
    """The same content, but elsewhere."""
    path = data_file(store, rng)
    path = rng.choice([path, path.with_suffix(".json"), path.parent, store / "identity.json"])
    path = store / "samples" if path == store else path
    elsewhere = store.parent / "elsewhere"
    shutil.move(path, elsewhere)
    path.symlink_to(elsewhere)
    return path.stem if path.suffix else ""


def bad_name(store: Path, rng: random.Random) -> str:
    name = rng.choice(["a b", "co\nin", "~root", "é"])
    shutil.copytree(store / "grades/coin", store / "grades" / name)
    return repr(name)


def bad_manifest(store: Path, rng: random.Random) -> str:
    """The manifest is an index that `verify` alone reads."""
    file = store / "manifest.json"
    record = json.loads(file.read_text())
    if rng.random() < 0.4:
        return bad_json(store, "manifest.json", rng)
    if rng.random() < 0.3:
        record["identity"] = "0" * 64
    else:
        record["files"][rng.choice(["../../secret.parquet", "/etc/passwd", "gone.parquet", "a\nb"])] = {}
    file.write_text(json.dumps(record))
    return "manifest"


def other_questions(store: Path, rng: random.Random) -> str:
    """Questions that break a rule, under an identity that was made to fit them."""
    changes = [set_one("question_id", "", "q3"), set_one("meta", "{", "[" * 10**5, "NaN")]
    changes += [set_one("kind", "essay"), set_one("text", "")]
    edit_rows(rng.choice(changes), "questions.parquet")(store, rng)
    rows = pq.read_table(store / "questions.parquet").to_pylist()
    record = json.loads((store / "identity.json").read_text())
    record["of"]["questions"] = sha256_json(rows)
    record["identity"] = sha256_json(record["of"])
    (store / "identity.json").write_text(json.dumps(record))
    return "questions.parquet"


def swap(rows: list[Any], rng: random.Random) -> None:
    i, j = rng.sample(range(len(rows)), 2)
    rows[i], rows[j] = rows[j], rows[i]


def flip(store: Path, rng: random.Random) -> str:
    path = data_file(store, rng)
    content = bytearray(path.read_bytes())
    for _ in range(rng.choice([1, 1, 20])):
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    path.write_bytes(bytes(content))
    return path.name


def with_content(make: Callable[[bytes, random.Random, Path], bytes]) -> Alteration:
    def alter(store: Path, rng: random.Random) -> str:
        path = data_file(store, rng)
        return maybe_vouched(path, make(path.read_bytes(), rng, store), rng)

    return alter


def metadata(change: dict[str, str] | None) -> Callable[[pa.Table, random.Random], pa.Table]:
    return lambda table, rng: table.replace_schema_metadata(change)


def drop(table: pa.Table, rng: random.Random) -> pa.Table:
    return table.drop_columns([rng.choice(table.column_names)])


def add(table: pa.Table, rng: random.Random) -> pa.Table:
    return table.append_column(rng.choice(["more", "../more", "text", "a\nb"]), table["question_id"])


def retype(table: pa.Table, rng: random.Random) -> pa.Table:
    column, kind = rng.choice(
        [("sample", pa.int64()), ("text", pa.large_string()), ("logprobs", pa.list_(pa.float64()))]
    )
    return table.set_column(table.column_names.index(column), column, table[column].cast(kind))


def annotate(table: pa.Table, rng: random.Random) -> pa.Table:
    """What pyarrow before 14.0.1 unpickled when it read the column."""
    spell = {"ARROW:extension:name": "arrow.py_extension_type", "ARROW:extension:metadata": "cos\nmkdir\n."}
    place = rng.randrange(table.num_columns)
    return table.cast(table.schema.set(place, table.schema.field(place).with_metadata(spell)))


def _by_ending(make: Callable[..., tuple[torch.Tensor, torch.Tensor]]) -> Callable[..., dict[str, torch.Tensor]]:
    return lambda values, offsets, rng: dict(zip(("", ".offsets"), make(values, offsets, rng), strict=True))


#: Alterations of the token signal of a store that has one.
TOKEN_ALTERATIONS: dict[str, Alteration] = {
    "offsets that do not begin at 0": edit_tokens(lambda v, o, rng: o.__setitem__(0, rng.choice([1, -1, -(2**62)]))),
    "offsets that fall": edit_tokens(swap_offsets),
    "offset below 0": edit_tokens(lambda v, o, rng: o.__setitem__(rng.randrange(1, len(o) - 1), -(2**63))),
    "offset beyond the values": edit_tokens(lambda v, o, rng: o.__setitem__(rng.randrange(1, len(o)), 2**62)),
    "offsets that end too early": edit_tokens(_by_ending(lambda v, o, rng: (v, o.clamp(max=int(o[-1]) - 1)))),
    "more values": edit_tokens(_by_ending(lambda v, o, rng: (torch.cat([v, v[:1]]), o))),
    "fewer values": edit_tokens(_by_ending(lambda v, o, rng: (v[:-1], o))),
    "no values": edit_tokens(_by_ending(lambda v, o, rng: (v[:0], o))),
    "offsets of another type": edit_tokens(
        _by_ending(lambda v, o, rng: (v, o.to(rng.choice([torch.int32, torch.float64, torch.uint8, torch.bool]))))
    ),
    "offsets of other rows": edit_tokens(
        _by_ending(lambda v, o, rng: (v, rng.choice([o[:-1], o[1:], torch.cat([o, o[-1:]]), o[:0], o[:, None], o[0]])))
    ),
    "offsets without values": edit_tokens(lambda v, o, rng: {".offsets": o}),
    "offsets of offsets": edit_tokens(lambda v, o, rng: {"": v, ".offsets": o, ".offsets.offsets": o.clone()}),
    "values without offsets": edit_tokens(lambda v, o, rng: {"": v}),
    "one value a row": edit_tokens(lambda v, o, rng: {"": torch.zeros(len(o) - 1)}),
    "several values a token": edit_tokens(_by_ending(lambda v, o, rng: (v[:, None].repeat(1, 2), o))),
    "nothing in a token": edit_tokens(_by_ending(lambda v, o, rng: (v[:, None][:, :0], o))),
    "values of another type": edit_tokens(
        _by_ending(lambda v, o, rng: (v.to(rng.choice([torch.float64, torch.float16, torch.int64, torch.bool])), o))
    ),
    "token that is not finite": edit_tokens(break_token),
    "header lies": header_lies("signals/tokens/*/*.safetensors"),
}
ALTERATIONS: dict[str, Alteration] = {
    "truncated": with_content(lambda content, rng, _: content[: rng.randrange(len(content))]),
    "lengthened": with_content(lambda content, rng, _: content + rng.randbytes(rng.randrange(1, 99))),
    "flipped bits": flip,
    "garbage": with_content(lambda content, rng, _: rng.randbytes(rng.randrange(2000))),
    "a pickle": with_content(lambda content, rng, store: bomb(store)),
    "missing file": missing_file,
    "bad voucher": bad_voucher,
    "foreign file": foreign_file,
    "overlapping part": overlapping_part,
    "another block's file": another_block,
    "link outside": link_outside,
    "bad name of a grader": bad_name,
    "missing column": edit_table(drop),
    "extra column": edit_table(add),
    "column of another type": edit_table(retype),
    "column with a spell": edit_table(annotate),
    "other rows": edit_rows(other_rows),
    "grades of other rows": edit_rows(other_rows, "grades/coin/*"),
    "unknown question": edit_rows(set_one("question_id", "../../q0", "", "nobody", "q0\n", "q99")),
    "sample out of the part": edit_rows(set_one("sample", -1, 4, 2**31 - 1, -(2**31))),
    "grade of a sample out of the part": edit_rows(set_one("sample", -1, 4, 2**31 - 1), "grades/coin/*"),
    "impossible log-probability": edit_rows(set_one("logprobs", [-1, float("nan")], [0.5, -1], [-float("inf"), 0])),
    "other number of tokens": edit_rows(set_one("token_ids", [], [1], [1, 2, 3], [-1, 2], [1] * 999)),
    "nulls": edit_rows(lambda rows, rng: set_one(rng.choice(sorted(rows[0])), None)(rows, rng)),
    "nulls in a list": edit_rows(set_one("token_ids", [None, 3])),
    "unknown finish reason": edit_rows(set_one("finish_reason", "", "STOP", "os.system")),
    "impossible prompt length": edit_rows(set_one("prompt_tokens", 0, -5, 9)),
    "other prompt length in one part": edit_rows(lambda rows, rng: [row.update(prompt_tokens=9) for row in rows]),
    "grades of nobody": edit_table(metadata(None), "grades/coin/*"),
    "grades of another grader": edit_table(metadata({"grader": "../coin", "rule": ""}), "grades/coin/*"),
    "altered questions": edit_rows(set_one("text", "Other.", "\n"), "questions.parquet"),
    "questions in another order": edit_rows(swap, "questions.parquet"),
    "questions that break a rule": other_questions,
    "footer lies": footer_lies,
    "header lies": header_lies(),
    "signal of another store": edit_signal(lambda tensors, rng: None, identity="f" * 64),
    "signal of another name": edit_signal(lambda tensors, rng: None, signal="../hidden"),
    "missing key": edit_signal(lambda tensors, rng: tensors.pop(rng.choice(sorted(tensors)))),
    "extra key": edit_signal(
        lambda tensors, rng: tensors.update(
            {rng.choice(["../../etc", "9/last_prompt", "last_prompt", "-1/x", "a\nb"]): torch.zeros(8, 4)}
        )
    ),
    "no keys": edit_signal(lambda tensors, rng: tensors.clear()),
    "other number of rows": edit_signal(
        some_tensor(lambda t, rng: rng.choice([t[1:], torch.cat([t, t]), t[:0], t.T[:3], t[0, 0]]))
    ),
    "other width": edit_signal(some_tensor(lambda t, rng: rng.choice([t[:, 1:], t[:, None], t.repeat(1, 99)]))),
    "other dtype": edit_signal(
        some_tensor(lambda t, rng: t.to(rng.choice([torch.int64, torch.bool, torch.float64, torch.float16])))
    ),
    "NaN in a signal": edit_signal(some_tensor(broken_row)),
    "rows of tokens in one file": edit_signal(
        lambda tensors, rng: tensors.update(
            {f"{rng.randrange(3)}/last_prompt.offsets": torch.arange(len(tensors["0/last_prompt"]) + 1)}
        )
    ),
    "offsets of nothing": edit_signal(
        lambda tensors, rng: tensors.update(
            {rng.choice(["9/last_prompt.offsets", ".offsets", "a\nb.offsets"]): torch.zeros(9, dtype=torch.int64)}
        )
    ),
    "identity that is none": lambda store, rng: bad_json(store, "identity.json", rng),
    "altered identity": edit_identity(set_field("policy.decoding.temperature", 0.1, 1, 2.0), sealed=False),
    "other keys in the identity": edit_identity(change_keys),
    "bad block size": edit_identity(set_field("block_size", 0, -8, 10**12, 8.0, "8", True, None, [8])),
    "bad decoding": edit_identity(set_field("policy.decoding.max_new_tokens", 0, -1, "3", None, 2.5, {})),
    "bad model": edit_identity(set_field("policy.model.id", "../tiny", "/etc/passwd", "a/b/c", "~/x", "", 3, None)),
    "newer version": edit_identity(set_field("schema", 2, 99, "1", None, True)),
}
