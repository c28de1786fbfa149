"""The Ray engine: actors on one or several machines process the blocks of a store.

The RAY_ADDRESS environment variable selects an existing cluster. If it is not set, a cluster is started on this
machine. It stops when the process that started it ends.
"""

import os
import signal
import socket
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from extract.errors import InputError
from extract.running.progress import Count, Progress, quiet_loggers
from extract.running.worker import Item, Result, Start, Worker

Engine = Literal["local", "ray"]
#: Maximum number of times that a block is repeated if its actor dies, for example because memory ran out.
RETRIES = 10
#: Seconds between checks that the cluster still exists.
CHECK_SECONDS = 5.0
_NONE: Mapping[str, object] = MappingProxyType({})


def worker_for(engine: Engine, actors: int | None = None, per_process: Mapping[str, object] = _NONE) -> Worker:
    """Create a `Worker` for this process, or a `RayWorker`, which assigns blocks to Ray actors.

    `per_process` maps the names of per-process options to their values. These options do not work with Ray, because
    actors do not see each other's answers. With the Ray engine, all values must be None.
    """
    worker = Worker.from_environment()
    if engine == "ray":
        if worker.count > 1:
            raise InputError(
                f"Expected --engine ray to run in one process, but WORLD_SIZE is {worker.count}. Run the command "
                "without torchrun, or unset RANK and WORLD_SIZE."
            )
        if actors is not None and actors < 1:
            raise InputError(
                f"Expected `actors` to be at least 1, but got {actors}. Pass a larger --actors, or omit it."
            )
        for option, value in per_process.items():
            if value is not None:
                raise InputError(
                    f"Expected `{option}` to be unset with --engine ray, but got {value!r}. Actors do not see each "
                    f"other's answers. Pass --engine local, or remove --{option}."
                )
        return RayWorker(actors)
    if actors is not None:
        raise InputError(f"Expected no `actors` without --engine ray, but got {actors}. Pass --engine ray.")
    return worker


class RayWorker(Worker):
    """Worker that assigns all blocks to Ray actors, which write the files.

    The worker connects to the cluster on first use.

    Raises:
        InputError: If Ray is not installed, or if the cluster can't be reached, disappears or is too small for the
            actors.
    """

    def __init__(self, actors: int | None = None) -> None:
        super().__init__()
        self._given = actors

    @cached_property
    def _ray(self) -> Any:
        return connect()

    @cached_property
    def _resources(self) -> tuple[int, dict[str, int]]:
        """Number of actors, and the resources of each actor."""
        total = self._ray.cluster_resources()
        unit = "GPU" if total.get("GPU") else "CPU"
        n_units = int(total.get(unit, 0))
        if n_units == 0:
            raise InputError(
                "Expected the Ray cluster to have at least one CPU, but it has none. Wait until other machines have "
                "joined the cluster, or restart it with at least one CPU."
            )
        if self._given is not None and self._given > n_units:
            raise InputError(
                f"Expected `actors` to be at most {n_units}, the number of {unit}s in the cluster, but got "
                f"{self._given}. Pass a smaller --actors, or omit it to get one actor per {unit}."
            )
        return self._given or n_units, {f"num_{unit.lower()}s": 1}

    @contextmanager
    def writing(self, store: Path) -> Iterator[None]:
        """Lock the store. On exit, delete the unfinished files of actors that have died."""
        with super().writing(store):
            yield
            self._delete_unfinished(store)

    def once(self, function: Callable[[], Result]) -> Result:
        """Call a function in a Ray task with the same resources as an actor."""
        task = self._ray.remote(max_retries=RETRIES, **self._resources[1])(_call).remote(function, os.getcwd())
        self._wait([task])
        return self._result(task)

    def run(
        self,
        start: Start[Item, Result],
        items: Sequence[Item],
        n_rows: Callable[[Item], int],
        bar: Callable[[], Progress],
    ) -> Iterator[Result]:
        """Process the items in actors. Each actor processes one block at a time. See `Worker.run`.

        The function that `start` yields must skip existing files, because a block is repeated if its actor dies.
        """
        blocks: dict[int, list[Item]] = defaultdict(list)
        for item in items:
            blocks[item.block].append(item)
        todo, (n_actors, resources) = deque(blocks.values()), self._resources
        actor_class = self._ray.remote(max_restarts=-1, max_task_retries=RETRIES, **resources)(_Actor)
        actors = [actor_class.remote(start, os.getcwd()) for _ in range(min(n_actors, len(blocks)))]
        # an actor gets its first block once it has started, because it may have to wait for its CPU or GPU
        running: dict[Any, tuple[Any, list[Item]]] = {actor.__ray_ready__.remote(): (actor, []) for actor in actors}
        n_left = len(blocks)
        try:
            with bar() as progress:
                while n_left:
                    finished = self._wait(list(running))
                    outcome, (actor, block) = self._result(finished), running.pop(finished)
                    if todo:
                        following = todo.popleft()
                        running[actor.process.remote(following)] = actor, following
                    else:
                        self._ray.kill(actor)  # free its CPU or GPU for other jobs
                    if block:
                        result, tokens = outcome
                        progress(sum(map(n_rows, block)), tokens)
                        n_left -= 1
                        yield result
        finally:
            for actor in actors:
                self._ray.kill(actor)

    def _wait(self, tasks: list[Any]) -> Any:
        """Wait until one of the tasks has finished, and return it."""
        while True:
            finished, _ = self._ray.wait(tasks, timeout=CHECK_SECONDS)
            if finished:
                return finished[0]
            try:
                check_address(self._address)
            except OSError as error:
                raise _gone(error) from None

    @cached_property
    def _address(self) -> str:
        return str(self._ray.get_runtime_context().gcs_address)

    def _result(self, task: Any) -> Any:
        """Return the result of a finished task, or raise its error."""
        try:
            result = self._ray.get(task)
        except self._ray.exceptions.RayTaskError:  # a bug, so the traceback is kept
            raise
        except self._ray.exceptions.RayError as error:
            raise _gone(error) from None
        if isinstance(result, Exception):
            raise result
        return result


def _gone(error: Exception) -> InputError:
    line = str(error).strip().splitlines()[0]
    return InputError(
        f"Expected the Ray cluster to finish the job, but got {type(error).__name__}: {line.rstrip('.')}. Finished "
        "blocks are kept. Run the same command again to continue. If memory ran out, give each actor more memory."
    )


def check_address(address: str) -> None:
    """Raise an OSError if nothing is listening on HOST:PORT. Addresses in other forms are not checked."""
    host, _, port = address.rpartition(":")
    if port.isdecimal() and "/" not in host:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CHECK_SECONDS).close()


def connect() -> Any:
    """Connect this process to a Ray cluster if necessary, and return the `ray` module."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_task_oom_retries", str(RETRIES))  # by default, Ray retries without a limit
    try:
        import ray
    except ImportError:
        raise InputError(
            "Expected the `ray` package to be installed for --engine ray, but it is not. Run `pip install "
            "'confidence-probes[ray]'`, or use --engine local."
        ) from None
    if ray.is_initialized():
        return ray
    address = os.environ.get("RAY_ADDRESS")
    before = signal.getsignal(signal.SIGTERM)
    options: dict[str, Any] = {} if address else {"include_dashboard": False}
    try:
        check_address(address or "")  # Ray itself would try for minutes
        with quiet_loggers("ray"):
            ray.init(address or "local", log_to_driver=False, configure_logging=False, **options)
    except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        wanted, remedy = "Ray to start", "If a path is too long, set RAY_TMPDIR=/tmp."
        if address:
            wanted = f"a Ray cluster at RAY_ADDRESS={address!r}"
            remedy = (
                "Start it with `ray start --head`, or unset RAY_ADDRESS. If the cluster requires a token, set "
                "RAY_AUTH_TOKEN."
            )
        raise InputError(f"Expected {wanted}, but got: {str(error).strip().splitlines()[0]} {remedy}") from None
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)  # Ray's handler prints no message
    return ray


class _Tokens:
    """Progress callback that counts only tokens."""

    def __init__(self) -> None:
        self.n = 0

    def __call__(self, items: int, tokens: int) -> None:
        self.n += tokens

    def note(self, text: str) -> None:
        """Do nothing, because an actor has no progress bar."""


class _Actor:
    """Process that loads a model once and then processes blocks."""

    def __init__(self, start: Callable[[], Any], folder: str) -> None:
        self._start, self._folder, self._stack = start, folder, ExitStack()

    @cached_property
    def _process(self) -> Callable[[Sequence[Any], Count], Any]:
        return self._stack.enter_context(self._start())

    def process(self, block: Sequence[Any]) -> Any:
        """Process a block. Return the result and the number of tokens, or the error."""
        tokens = _Tokens()
        return _call(lambda: (self._process(block, tokens), tokens.n), self._folder)


def _call(function: Callable[[], Any], folder: str) -> Any:
    """Call a function in the driver's working directory. An `InputError` or `OSError` is returned instead of raised."""
    place = f"(in an actor on {socket.gethostname()})"
    if not os.path.isdir(folder):
        return InputError(
            f"Expected the current folder {folder!r} to exist on all machines, but it is missing on one of them "
            f"{place}. Run the command in a folder that all machines have."
        )
    try:
        os.chdir(folder)
        return function()
    except InputError as error:  # as a plain InputError, because subclasses take other arguments
        return InputError(f"{error} {place}")
    except OSError as error:
        return OSError(error.errno, f"{error.strerror} {place}", error.filename) if error.strerror else error
