"""Tests of sharing probes on the Hub, with a stub on the loopback interface."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from extract.errors import InputError
from probes import ConfidenceProbe, load_probe
from probes.saved.card import model_card
from probes.saved.hub import failure
from tests.helpers.altered_probes import make_probe
from tests.helpers.hub_stub import TOKEN, Hub, environment, hub_stub, use_in_this_process

CARD = "---\nlibrary_name: confidence-probes\nbase_model: someone/model\n---\n\n# A card with é\n"
#: huggingface_hub 2.4 on httpx2 warns when it uploads.
UPLOADS = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")
FILES = {"config.json", "model.safetensors", "README.md"}


@pytest.fixture
def hub() -> Iterator[Hub]:
    with hub_stub() as running:
        yield running


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Save a probe with random weights and a card."""
    probe = load_probe(make_probe(tmp_path_factory.mktemp("random"), random.Random(0)))
    return probe.save(tmp_path_factory.mktemp("probe"), CARD)


def in_process(program: str, hub: Hub, home: Path) -> str:
    """Run a program in a process that uses the stub and lacks large packages."""
    start = """
import sys
for name in ("lightning", "transformers", "torchmetrics", "datasets", "sklearn", "matplotlib", "pyarrow", "wandb", "jsonargparse", "scipy", "jinja2"):
    sys.modules[name] = None
import torch
from probes import ConfidenceProbe, load_probe
"""
    done = subprocess.run(
        [sys.executable, "-c", start + program],
        env={**os.environ, **environment(hub, str(home))},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert TOKEN not in done.stdout + done.stderr
    return done.stdout


#: Function that calls a function with the stub, an empty cache and a token, and returns the message of its error.
Errors = Callable[..., str]


@pytest.fixture
def error(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Errors:
    monkeypatch.setattr("time.sleep", lambda seconds: None)  # no waiting between attempts

    def message(action: Callable[[str], object], repo: str, token: str | None = TOKEN, **options: Any) -> str:
        use_in_this_process(hub, tmp_path / f"home-{token}", monkeypatch, token)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)  # huggingface_hub removes no folder after an error
            try:
                return f"no error: {action(repo, **options)}"
            except Exception as error:
                return f"{type(error).__name__}: {error}"

    return message


@pytest.mark.slow
def test_a_probe_is_the_same_after_a_push_and_a_download_without_large_packages(
    hub: Hub, saved: Path, tmp_path: Path, error: Errors
) -> None:
    program = f"""
probe = load_probe({str(saved)!r})
print(probe.push_to_hub("someone/probe", private=True, commit_message="first"))
rows = torch.randn(50, 8)
confidence = probe.confidences(rows).confidence
assert ((confidence >= 0) & (confidence <= 1)).all()
for found in (load_probe("someone/probe"), ConfidenceProbe.from_pretrained("someone/probe", cache_dir={str(tmp_path / "cache")!r})):
    assert torch.equal(found.confidences(rows).confidence, confidence)
    assert (found.config, found.card) == (probe.config, probe.card)
print(found.push_to_hub("someone/copy"))
found.card += "More."
print(found.push_to_hub("someone/copy"))
"""
    first, copy, _ = in_process(program, hub, tmp_path / "home").splitlines()
    files = {name: (saved / name).read_bytes() for name in FILES}
    assert hub.files("someone/probe") == files
    assert hub.files("someone/copy", copy.rpartition("/")[2]) == files
    assert hub.files("someone/copy") == {**files, "README.md": (CARD + "More.").encode()}
    assert first == f"{hub.url}/someone/probe/commit/{hub.commit('someone/probe')}"
    assert [one.get("visibility") for one in hub.created] == ["private", None, None]
    home = tmp_path / "home"
    cached = [
        path.read_bytes() for folder in (home, tmp_path / "cache") for path in folder.rglob("*") if path.is_file()
    ]
    assert not any(TOKEN.encode() in content for content in cached)

    missing = error(load_probe, "someone/copy", token=None, revision="none")
    assert load_probe("someone/copy", revision=copy.rpartition("/")[2]).card == CARD
    assert load_probe("someone/copy").card == CARD + "More."
    assert re.match(r"InputError: .*the Hub reported: status 404: Invalid rev id: none\. ", missing)


@pytest.mark.slow
@UPLOADS
def test_a_refusal_by_the_hub_is_one_line_with_the_reason(hub: Hub, saved: Path, error: Errors) -> None:
    hub.add("someone/private", {})
    hub.add("someone/gated", {"config.json": b"{}", "model.safetensors": b""})
    hub.add("someone/text", {"README.md": b"# No probe"})
    hub.add("someone/model", {"config.json": b'{"model_type": "llama"}', "model.safetensors": b"0"})
    hub.add("other/probe", {})
    hub.private.add("someone/private")
    hub.gated.add("someone/gated")
    hub.read_only.add("other")
    push = load_probe(saved).push_to_hub
    actions = [(load_probe, f"someone/{name}") for name in ("none", "private", "gated", "text", "model")]
    actions += [(load_probe, "no/such/id"), *((push, name) for name in ("other/probe", "other/new", "no/such/id"))]
    without, wrong, right = (
        [error(action, name, token) for action, name in actions] for token in (None, "hf_wrong", TOKEN)
    )
    assert all(line.startswith("InputError: ") for line in [*without, *wrong, *right])
    assert "hf_wrong" not in "".join(wrong)

    assert re.search(
        r"'someone/none' .*status 401: Repository not found\. .*Check the id.*HF_TOKEN [^.]+\. A training run",
        without[0],
    )
    assert re.search(r"'someone/private' .*status 401: .*it is private.*HF_TOKEN [^.]+\. A training run", without[1])
    assert re.search(r"status 401: Invalid credentials.*Run `hf auth login`", wrong[0])
    assert re.search(r"'someone/none' .*status 404: Repository not found\. .*Check the id", right[0])
    assert re.search(r"the repository 'someone/private' has no config\.json", right[1])
    assert re.search(r"status 403: Access to model someone/gated is restricted\. Run `hf auth login`", right[2])
    assert re.search(r"the repository 'someone/text' has no config\.json", right[3])
    assert re.search(r"config\.json' to .*format_version", right[4])
    assert re.search(r"the Hub reported: .*'no/such/id'", right[5])
    assert re.search(r"accept the probe 'other/probe', but the upload failed: status 403: .*hf auth login", without[6])
    assert re.search(r"'other/new', but the upload failed: status 401: Invalid username", without[7])
    assert re.search(r"'other/probe', but the upload failed: status 403: .*write token.*HF_TOKEN", right[6])
    assert re.search(r"'other/new', but the upload failed: status 403: You don't have the rights", right[7])
    assert re.search(r"'no/such/id', but the upload failed: .*repo", right[8], re.IGNORECASE)


@pytest.mark.slow
@UPLOADS
def test_an_interrupted_upload_leaves_no_part_of_a_probe_and_can_be_repeated(
    hub: Hub, saved: Path, error: Errors
) -> None:
    push = load_probe(saved).push_to_hub
    hub.broken = True
    line = error(push, "someone/probe")
    assert re.match(r"InputError: .*'someone/probe', but the upload failed: .*model\.safetensors.*\(.+\)\.$", line)
    assert "hush" not in line  # the signature in the address of the upload
    assert hub.commits == {"someone/probe": {}}
    assert "the repository 'someone/probe' has no config.json" in error(load_probe, "someone/probe")
    hub.broken = False
    assert error(push, "someone/probe").startswith("no error: ")
    assert hub.files("someone/probe").keys() == FILES


def test_a_hub_that_cannot_be_reached_is_one_line(hub: Hub, saved: Path, error: Errors) -> None:
    hub.url = "http://127.0.0.1:9"
    assert re.match(r"InputError: .*the Hub reported: .*Connect.* A training run", error(load_probe, "someone/probe"))
    pushed = error(load_probe(saved).push_to_hub, "someone/probe")
    assert re.match(r"InputError: .*the upload failed: .*[Cc]onnect", pushed)


LEGACY = sorted((Path(__file__).parents[2] / "data/legacy/runs").glob("*/probe"))


@pytest.mark.parametrize("folder", LEGACY, ids=lambda folder: folder.parent.name)
def test_a_probe_of_an_earlier_version_is_saved_with_the_same_weights_and_card(folder: Path, tmp_path: Path) -> None:
    found = load_probe(load_probe(folder).save(tmp_path))
    assert (tmp_path / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()
    assert found.card == (folder / "README.md").read_text(encoding="utf-8")


def test_the_mixin_writes_no_config_and_no_card_of_its_own(saved: Path, tmp_path: Path) -> None:
    probe = load_probe(saved)
    probe.save_pretrained(tmp_path / "probe", config={"other": 1})
    assert {path.name: path.read_bytes() for path in (tmp_path / "probe").iterdir()} == {
        name: (saved / name).read_bytes() for name in FILES
    }
    assert ConfidenceProbe.from_pretrained(tmp_path / "probe").config == probe.config


def test_a_token_cannot_be_an_argument_and_appears_in_no_message(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="Expected no `token`, but got one. Run `hf auth login`") as error:
        load_probe(saved).push_to_hub("someone/probe", token=TOKEN)
    assert TOKEN not in str(error.value)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    for probe, options in ((f"https://user:{TOKEN}@b.hub/c", {}), ("someone/probe", {"token": TOKEN})):
        with pytest.raises(InputError) as error:
            ConfidenceProbe.from_pretrained(probe, **options)
        assert TOKEN not in str(error.value)
    said = failure(ValueError(f"no {TOKEN} at https://large.hub/a?X-Signature=hush&b=1, or\n https://b.hub/c"))
    assert said == "no … at https://large.hub/a?… or https://b.hub/c"
    with pytest.raises(TypeError, match="nonsense"):
        load_probe(saved).push_to_hub("someone/probe", nonsense=1)


@pytest.mark.parametrize("content", [None, b"\xff", b"x" * (2**20 + 1)], ids=["missing", "no text", "large"])
def test_a_probe_without_a_usable_card_is_saved_with_a_short_card(
    content: bytes | None, saved: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(saved, tmp_path / "probe"))
    (folder / "README.md").unlink()
    if content is not None:
        (folder / "README.md").write_bytes(content)
    probe = load_probe(folder)
    assert probe.card is None
    card = (probe.save(tmp_path / "again") / "README.md").read_text()
    assert yaml.safe_load(card.split("---\n")[1])["library_name"] == "confidence-probes"
    assert (probe.save(tmp_path / "again", "other") / "README.md").read_text() == "other"


def test_a_card_that_links_to_another_folder_is_refused(saved: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(saved, tmp_path / "probe"))
    (tmp_path / "secret").write_text("hush")
    (folder / "README.md").unlink()
    (folder / "README.md").symlink_to(tmp_path / "secret")
    with pytest.raises(InputError, match=r"README\.md' to be a file in the probe's folder, but it links"):
        load_probe(folder)


@pytest.mark.parametrize(("model", "base"), [("org/a: b", "org/a: b"), ("folder", None)])
def test_the_metadata_of_a_card_contain_the_base_model_only_if_it_has_a_hub_id(model: str, base: str | None) -> None:
    path = Path(__file__).parents[2] / "data/legacy/runs/sep/probe/config.json"
    config = json.loads(path.read_text())
    config["model"]["id"], config["training"]["cross_fitted"] = model, False
    config = {"layers": [config.pop("layer")], **config} if "layer" in config else config
    metadata = yaml.safe_load(model_card(config).split("---\n")[1])
    assert metadata.get("base_model") == base
    assert metadata["tags"] == ["confidence", "calibration", "probe"]


def test_a_card_states_all_sampling_settings_and_the_number_of_worked_examples() -> None:
    path = Path(__file__).parents[2] / "data/legacy/runs/sep/probe/config.json"
    config = json.loads(path.read_text())
    config = {"layers": [config.pop("layer")], **config} if "layer" in config else config
    config["training"]["cross_fitted"] = False
    config["decoding"] |= {"temperature": 0.5, "top_p": 0.9, "top_k": 20}
    config["prompt"]["examples"] = [["1 + 1?", "2"], ["2 + 2?", "4"]]
    assert "temperature 0.5, top-p 0.9, top-k 20, at most" in model_card(config)
    assert ", after 2 worked examples." in model_card(config)
