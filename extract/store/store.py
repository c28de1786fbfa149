"""The store: a directory with the samples, grades, signals and asked baselines of one policy. Files are only added."""

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
        identity: Content of the identity, in plain JSON types.
        sha256: SHA-256 of the identity.
        samples: Samples.
        grades: Grades by grader.
        signals: Signals by name.
        asked: Tables of asked baselines by name.
    """

    def __init__(self, path: Path, identity: dict[str, Any]) -> None:
        self._folder = StoreFolder(path, identity)
        self.path, self.identity, self.sha256 = path, identity, self._folder.sha256
        self.samples = Samples(self._folder)
        self.grades = Grades(self._folder)
        self.signals = Signals(self._folder)
        self.asked = Asked(self._folder)

    @classmethod
    def create(cls, path: str | Path, identity: Identity, questions: Iterable[Question]) -> Self:
        """Create a store, or open the store at `path` if it has the same identity.

        Raises:
            InputError: If the folder holds a store of another identity, or other files.
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
        if not is_whole(file, path):  # for example if a run was killed before it was written
            table = questions if isinstance(questions, Questions) else Questions.of(questions, identity.block_size)
            write_table(file, table.table, row_group_size=BATCH)
        return store

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """Open a store.

        Raises:
            InputError: If there is no store at `path`, or this version cannot read it.
        """
        return cls(Path(path), read_identity(Path(path)))

    def check_identity(self, expected: dict[str, Any]) -> None:
        """Check that the store has an identity.

        Raises:
            InputError: If the identities differ. The message has both values of each difference.
        """
        if different := "; ".join(differences(self.identity, expected)):
            raise InputError(
                f"Expected the store {str(self.path)!r} to have the identity of this run, but they differ in "
                f"{different}. Give another --store, or the settings of that store."
            )

    @property
    def questions(self) -> Questions:
        """The questions in their order.

        Raises:
            Damaged: If their hash differs from the identity.
        """
        return self._folder.questions

    def shards(self, scope: Scope) -> list[Shard]:
        """All blocks, or all finished ranges of samples, in the order of the rows."""
        return self._folder.shards(scope)

    @property
    def model_id(self) -> str:
        """Name of the model that answered."""
        return str(self.identity["policy"]["model"]["id"])

    @property
    def reader(self) -> dict[str, Any] | None:
        """Identity of the local copy of a served model; None before the first reading, and for a local model.

        Raises:
            InputError: If reader.json is damaged.
        """
        return None if self.samples.provides.weights else read_reader(self.path, self.sha256)

    @property
    def model(self) -> dict[str, Any]:
        """Identity (`ModelIdentity` as a dict) of the model that signals are read from: the sampled one or its copy.

        Raises:
            InputError: If the model is served and no local copy of it was read yet.
        """
        model = self.identity["policy"]["model"] if self.samples.provides.weights else self.reader
        if model is None:
            raise InputError(
                f"Expected {str(self.path)!r} to have a local copy of {self.model_id!r}, which answered, but it has "
                f"none. Run `python -m extract read --store {self.path} --model PATH_OR_HUB_ID`."
            )
        return model
