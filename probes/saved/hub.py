"""Find a probe's files in a folder or on the Hugging Face Hub, and explain failed requests."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

from extract.errors import InputError
from extract.store.files import is_inside
from extract.text import one_line

CARD = "README.md"
_FILES = ["config.json", "model.safetensors", CARD]
_LARGEST_CARD = 2**20  # bytes
#: URL with a query string, which contains a signature if the URL is for an upload.
_QUERY = re.compile(r"(https?://[^\s?'\"<>]+)\?[^\s'\"<>]*")
_LONGEST = 400


def find_probe(
    probe: str | Path,
    revision: str | None,
    *,
    cache_dir: str | Path | None = None,
    force_download: bool = False,
    local_files_only: bool = False,
    token: bool | str | None = None,
) -> list[Path]:
    """Return the paths of a probe's config.json, model.safetensors and README.md. README.md may be missing.

    If `probe` is a Hub id, the files are downloaded first. See `snapshot_download` for the other arguments.

    Raises:
        InputError: If there is no such folder or repository, a required file is missing, a file links to another
            folder, or `token` is a string.
    """
    if isinstance(token, str):  # it could become part of a message
        raise InputError(
            "Expected `token` to be true, false or null, but got a string. Run `hf auth login`, or set the HF_TOKEN "
            "environment variable."
        )
    if os.path.isdir(probe):
        folder = home = Path(probe)
        named = repr(str(folder))
    else:
        from huggingface_hub import get_token, snapshot_download

        from extract.sampling.server.redact import without_key

        try:
            snapshot = snapshot_download(
                str(probe),
                revision=revision,
                allow_patterns=_FILES,
                cache_dir=cache_dir,
                force_download=force_download,
                local_files_only=local_files_only,
                token=token,
            )
        except Exception as error:  # huggingface_hub, its HTTP library and hf_xet raise many exception types
            raise InputError(
                f"Expected `probe` to be the folder of a saved probe or a Hub id, but there is no folder "
                f"{without_key(repr(str(probe)), get_token())} and the Hub reported: {failure(error)}. A training "
                "run saves its probe in runs/NAME/probe."
            ) from error
        folder = Path(snapshot)
        home = folder.parents[1]  # the files of a snapshot link to other files of the cached repository
        named = f"the repository {str(probe)!r}"
    paths = [folder / name for name in _FILES]
    for path in paths:
        if path.name != CARD and not path.is_file():
            raise InputError(
                f"Expected `probe` to be the folder of a saved probe, but {named} has no {path.name}. A training "
                "run saves its probe in runs/NAME/probe."
            )
        if not is_inside(path, home):
            raise InputError(
                f"Expected {str(path)!r} to be a file in the probe's folder, but it links to another folder. Copy the "
                "file into the folder, or load a probe from the Hub by its id."
            )
    return paths


def read_card(path: Path) -> str | None:
    """Read a model card. Returns None if the file is missing, larger than 1 MiB or not UTF-8."""
    try:
        with path.open("rb") as file:
            content = file.read(_LARGEST_CARD + 1)
        return content.decode() if len(content) <= _LARGEST_CARD else None
    except (OSError, UnicodeDecodeError):
        return None


def failure(error: Exception) -> str:
    """Describe in one line why a Hub request failed and, if possible, how to fix it.

    Query strings of URLs and the user's access token are removed.
    """
    from huggingface_hub import get_token
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RepositoryNotFoundError

    from extract.sampling.server.redact import without_key

    errors, next_step = list(_chain(error)), ""
    reply = next((one for one in errors if isinstance(one, HfHubHTTPError)), None)
    if reply is None:
        first, last = one_line(error).rstrip("."), one_line(errors[-1]).rstrip(".")
        words = first if last in first else f"{first} ({last or type(errors[-1]).__name__})"
    else:
        status = reply.response.status_code
        words = f"status {status}: {one_line(reply.server_message or reply.response.reason_phrase).rstrip('.')}"
        if isinstance(reply, RepositoryNotFoundError) and not isinstance(reply, GatedRepoError):
            next_step = (
                ". The repository does not exist, or it is private. Check the id. For a private repository, run "
                "`hf auth login` or set the HF_TOKEN environment variable"
            )
        elif status in (401, 403):
            next_step = (
                ". Run `hf auth login`, or set the HF_TOKEN environment variable, with a token that has access to the "
                "repository"
            )
    return without_key(_QUERY.sub(r"\1?…", one_line(words, _LONGEST)), get_token()) + next_step


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error, then its cause, then the cause's cause, and so on."""
    while error is not None:
        yield error
        error = error.__cause__
