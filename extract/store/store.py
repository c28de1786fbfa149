"""`Store`, a directory with the questions, samples, grades, signals and model-based baselines of one policy."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Self

from extract.errors import InputError
from extract.hashing import differences
from extract.policy import Identity
from extract.questions.question import Question
from extract.store.asked import Asked
from extract.store.files import is_whole
from extract.store.folder import StoreFolder
from extract.store.grades import Grades
from extract.store.identity import check_folder, read_identity, read_reader, write_identity
from extract.store.parquet import write_table
from extract.store.questions import BATCH, Questions
from extract.store.samples import Samples
from extract.store.shards import Scope, Shard
from extract.store.signals import Signals


class Store:
    """A store on disk. Use `Store.create` or `Store.open`.

    Attributes:
        path: The directory.
        identity: Identity of the store, as plain JSON types.
        sha256: SHA-256 of the identity.
        samples: Answers.
        grades: Grades of the answers.
        signals: Signals of the questions and answers.
        asked: Results of model-based baselines.
    """

    def __init__(self, path: Path, identity: dict[str, Any]) -> None:
        self._folder = StoreFolder(path, identity)
        self.path, self.identity, self.sha256 = path, identity, self._folder.sha256
        self.samples = Samples(self._folder)
        self.grades = Grades(self._folder)
        self.signals = Signals(self._folder)
        self.asked = Asked(self._folder)

    def __reduce__(self) -> tuple[type[Self], tuple[Path, dict[str, Any]]]:
        return type(self), (self.path, self.identity)

    @classmethod
    def create(cls, path: str | Path, identity: Identity, questions: Iterable[Question]) -> Self:
        """Create a store at `path`, or open the existing store if it has the same identity.

        Raises:
            InputError: If the folder contains a store with a different identity, or other files.
        """
        path = Path(path)
        check_folder(path)
        if (path / "identity.json").is_file():
            store = cls.open(path)
            store.check_identity(identity.as_dict())
        else:
            path.mkdir(parents=True, exist_ok=True)
            store = cls(path, identity.as_dict())
            write_identity(path, store.identity)
        file = path / "questions.parquet"
        if not is_whole(file, path):  # an earlier run was killed
            table = questions if isinstance(questions, Questions) else Questions.of(questions, identity.block_size)
            write_table(file, table.table, row_group_size=BATCH)
        return store

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """Open an existing store.

        Raises:
            InputError: If there is no store at `path`, or if this version cannot read it.
        """
        return cls(Path(path), read_identity(Path(path)))

    def check_identity(self, expected: dict[str, Any]) -> None:
        """Raise an InputError if the store does not have the expected identity. The message lists the differences."""
        if different := "; ".join(differences(self.identity, expected)):
            raise InputError(
                f"Expected the store {str(self.path)!r} to match this run, but it differs in {different}. Use a "
                "different --store, or run with the settings of the existing store."
            )

    @property
    def questions(self) -> Questions:
        """Questions of the store, in order. Raises `Damaged` on first access if the file is damaged or altered."""
        return self._folder.questions

    def shards(self, scope: Scope) -> list[Shard]:
        """Return all blocks (question scope) or all finished ranges of samples (sample scope), in row order."""
        return self._folder.shards(scope)

    @property
    def model_id(self) -> str:
        """Name of the model that answered the questions."""
        return str(self.identity["policy"]["model"]["id"])

    @property
    def reader(self) -> dict[str, Any] | None:
        """Identity of the served model's local copy, or None if there is none yet.

        Raises:
            InputError: If reader.json is damaged.
        """
        return None if self.samples.provides.weights else read_reader(self.path, self.sha256)

    @property
    def model_is_unknown(self) -> bool:
        """Whether the model runs on a server and has no local copy yet."""
        return not self.samples.provides.weights and self.reader is None

    @property
    def model(self) -> dict[str, Any]:
        """Identity of the model from which signals are read (a `ModelIdentity` as a dict).

        Raises:
            InputError: If `model_is_unknown`.
        """
        model = self.identity["policy"]["model"] if self.samples.provides.weights else self.reader
        if model is None:
            raise InputError(
                f"Expected {str(self.path)!r} to have signals from a local copy of {self.model_id!r}, but it has none. "
                f"Run `python -m extract read --store {self.path} --model PATH_OR_HUB_ID`."
            )
        return model
