"""Server sampler, which saves answers as they arrive."""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from extract.errors import InputError
from extract.policy import Decoding, ModelIdentity, Policy
from extract.running.exit import run_async
from extract.running.progress import Progress, say
from extract.running.worker import Worker
from extract.sampling.base import Sampler, SamplingOptions
from extract.sampling.rounds import StoreRange
from extract.sampling.server.endpoint import allow_open_files
from extract.sampling.server.policy import Server
from extract.sampling.server.preflight import TRIES, Preflight, run_preflight
from extract.sampling.server.queue import Ask, first_asks, ranges_to_ask
from extract.sampling.server.run import MOST_REJECTED, Run, describe_rejected, say_rejected, too_many_rejected
from extract.store.answer_log import Row, read_log
from extract.store.files import is_whole
from extract.store.fill import missing_shards
from extract.store.questions import Questions
from extract.store.shards import SampleRange
from extract.store.store import Store

#: Minimum number of questions for `check_variation`, because a confident model often repeats its answer.
_LEAST_REPEATED = 30


class ServerSampler(Sampler):
    """Requests answers from a server. See `Sampler` for the interface."""

    def __init__(self, options: SamplingOptions, decoding: Decoding, worker: Worker) -> None:
        self.options, self.server, self.decoding, self.worker = options, options.server, decoding, worker
        self._preflights: dict[float, Preflight] = {}  # by temperature
        self._answers: dict[float, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
        self._checked: set[float] = set()  # temperatures at which the answers of `draw` vary

    def policy(self, decoding: Decoding) -> Policy:
        """Return the policy, which includes the type of API and the additional request fields."""
        request = {"api": "chat" if decoding.prompt.chat else "completions", "extra": self.server.extra_body}
        return Policy(ModelIdentity(self.options.model), decoding, request)

    def prepare(self, questions: Questions, new: Sequence[Decoding]) -> None:
        """Test the server before the model name and the request fields are recorded in a store."""
        if new:
            size, n_tries = self.options.block_size, TRIES * len(self.server.urls)
            first = questions[self.worker.rank * size :][: min(n_tries, size)]
            asks = [Ask(question, list(range(min(self.server.n, self.options.k) or 1))) for question in first]
            self._preflights[float(new[0].temperature)] = run_preflight(asks, self.options.model, new[0], self.server)

    def fill(self, stores: Mapping[float, Store], k: int) -> None:
        """Request the missing samples, one store at a time."""
        for temperature, store in stores.items():
            if len(stores) > 1:
                say(f"== {store.path}")
            self._fill_store(store, k, temperature)

    def draw(
        self, ranges: Mapping[float, StoreRange], question_ids: Sequence[str], samples: range, progress: Progress
    ) -> dict[float, list[Row]]:
        """Request the given samples, one temperature at a time."""
        rows, server = {}, self.server
        allow_open_files(server.max_concurrency * len(server.urls) + 1)
        for temperature, (store, part) in ranges.items():
            asks = [Ask(q, list(samples)[: self.server.n]) for q in store.questions.block(part) if q.id in question_ids]
            preflight = self._preflight(temperature, asks)
            wanted = dict.fromkeys(question_ids, samples)
            run = Run(store, [part], self.decoding.at(temperature), self.server, preflight, progress, wanted)
            run_async(run.ask_all())
            run.conclude(len(question_ids) * len(samples), self.worker.count)
            say_rejected(run.rejected)
            rows[temperature] = run.rows
            if temperature and temperature not in self._checked:
                answers = self._answers[temperature]
                for row in run.rows:
                    answers[row["question_id"]].append(row["text"])
                if sum(len(texts) > 1 for texts in answers.values()) >= _LEAST_REPEATED:
                    check_variation(answers.values(), store.path, preflight.varies)
                    self._checked.add(temperature)
        return rows

    def _fill_store(self, store: Store, k: int, temperature: float) -> None:
        server, worker, decoding = self.server, self.worker, self.decoding.at(temperature)
        damaged = missing_shards(store, store.samples.ranges(), worker, store.samples.file)
        ranges = ranges_to_ask(store, k, server.n, damaged, worker)
        if not ranges:
            say(f"sample: all {k} answers to each question already exist")
            return
        if not temperature:
            say(f"sample: at temperature 0, the {k} answers to a question are mostly identical, but each costs tokens")
        asks = first_asks(store, ranges, server.n, TRIES * len(server.urls))
        preflight = self._preflight(temperature, asks)
        missing = {s: n for s in ranges if (n := n_missing(store, s))}
        bar = partial(Progress, f"sample{worker.label}", sum(missing.values()), "answers")
        start = partial(_asking, store, decoding, server, preflight, worker.count)
        rejected, n_in_a_row = dict[str, str](), 0
        for of_ranges, n_accepted in worker.run(start, ranges, lambda s: missing.get(s, 0), bar):
            rejected |= of_ranges
            n_in_a_row = 0 if n_accepted else n_in_a_row + len(of_ranges)
            if n_in_a_row >= MOST_REJECTED:  # over several blocks, as each actor only counts its own block
                remedy = f", delete the files in {str(store.path / 'samples')!r} that contain these questions"
                raise InputError(f"{too_many_rejected(n_in_a_row, remedy)} {describe_rejected(rejected)}")
        say_rejected(rejected)
        if temperature:
            answers = defaultdict(list)
            for samples in (samples for samples in store.samples.ranges() if samples.block == ranges[0].block):
                for row in store.samples.read(samples).to_pylist():
                    answers[row["question_id"]].append(row["text"])
            check_variation(answers.values(), store.path, preflight.varies)

    def _preflight(self, temperature: float, asks: Sequence[Ask]) -> Preflight:
        """Run the preflight once per temperature, and return its results."""
        if temperature not in self._preflights:
            asks = asks[: TRIES * len(self.server.urls)]
            decoding = self.decoding.at(temperature)
            self._preflights[temperature] = run_preflight(asks, self.options.model, decoding, self.server)
        return self._preflights[temperature]


@contextmanager
def _asking(
    store: Store, decoding: Decoding, server: Server, preflight: Preflight, n_workers: int
) -> Iterator[Callable[[Sequence[SampleRange], Progress], tuple[dict[str, str], int]]]:
    """Yield a function that requests the missing answers in unfinished ranges.

    The function returns a dict from the id of each rejected question to the server's message. It also returns the
    number of answers that have arrived.
    """

    def ask(ranges: Sequence[SampleRange], progress: Progress) -> tuple[dict[str, str], int]:
        ranges = [samples for samples in ranges if not is_whole(store.samples.file(samples), store.path)]
        allow_open_files(server.max_concurrency * len(server.urls) + min(2 * server.max_concurrency, len(ranges)))
        n_answers = sum(n_missing(store, samples) for samples in ranges)
        run = Run(store, ranges, decoding, server, preflight, progress)
        run_async(run.ask_all())
        run.conclude(n_answers, n_workers)
        return run.rejected, len(run.rows)

    yield ask


def n_missing(store: Store, samples: SampleRange) -> int:
    """Return the number of answers in a range that have not been logged yet."""
    logged = len(read_log(store, samples)) if store.samples.log_file(samples).is_file() else 0
    return store.questions.n_rows(samples) - logged


def check_variation(answers: Iterable[Collection[str]], path: Path, has_varied: bool) -> None:
    """Warn if at least 30 questions have several answers, but no question has two different answers.

    `answers` contains the texts of each question's answers. `has_varied` states whether the answers in the preflight
    varied. If it is false, an `InputError` is raised instead of the warning.
    """
    distinct = [len(set(texts)) for texts in answers if len(texts) > 1]
    if len(distinct) < _LEAST_REPEATED or max(distinct) > 1:
        return
    line = f"none of {len(distinct)} questions has two different answers"
    if not has_varied:
        raise InputError(
            f"Expected answers to vary at a temperature above 0, but {line}. Inspect the answers with `python -m "
            f"extract inspect --store {path}`. Then change `server.extra_body` and sample into a new store."
        )
    say(f"sample: {line}. Either the model is very confident, or the server returns cached answers.")
