"""`Policy`, the settings that affect a store's answers, and `Identity`, the settings that identify a store."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from decimal import Decimal
from typing import Any, Self

from extract.errors import InputError
from extract.prompts import PromptTemplate
from extract.samplers import SAMPLERS
from extract.schemas import DECODING, check_options

#: Version of the file formats of a store.
SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Decoding:
    """Prompt template and options for sampling answers from a model.

    Attributes:
        temperature: Divisor of the logits. 0 means greedy decoding. A grid START:STOP:STEP, such as 0:1.2:0.1, includes
            STOP and creates one store per temperature.
        top_p: Sample from the smallest set of tokens with at least this total probability (1 keeps all tokens).
        top_k: Sample from the top_k most likely tokens (0 keeps all tokens).
        max_new_tokens: Maximum length of an answer in tokens.
        stop: Stop strings. They end an answer and are not part of it.
        seed: Random seed.
        prompt: Prompt template.
    """

    temperature: str | float = 0.7  # str first: option parsers read 0:1:0.5 as a float in base 60
    top_p: float = 1.0
    top_k: int = 0
    max_new_tokens: int = 16
    stop: tuple[str, ...] = ()
    seed: int = 0
    prompt: PromptTemplate = field(default_factory=PromptTemplate)

    def __post_init__(self) -> None:
        object.__setattr__(self, "stop", tuple(self.stop))
        if isinstance(self.temperature, str) and ":" not in self.temperature:
            object.__setattr__(self, "temperature", grid(self.temperature)[0])
        if isinstance(self.temperature, str):
            self.at(self.temperatures[0])  # checks the other options
        else:
            check_options(self, DECODING, "policy.")

    @property
    def temperatures(self) -> tuple[float, ...]:
        """All temperatures of the grid, or the single temperature."""
        return grid(self.temperature) if isinstance(self.temperature, str) else (self.temperature,)

    def at(self, temperature: float) -> Self:
        """Return a copy with the given temperature."""
        return replace(self, temperature=temperature)

    def record(self) -> dict[str, Any]:
        """Return the options as plain JSON types. The result is part of a store's identity."""
        return {**asdict(self), "stop": list(self.stop), "prompt": self.prompt.record()}


@dataclass(frozen=True)
class KnownDecoding:
    """Decoding options that were read from a log. Missing options are None. See `Decoding`."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    max_new_tokens: int | None = None
    stop: tuple[str, ...] | None = None
    seed: int | None = None
    prompt: PromptTemplate = field(default_factory=lambda: PromptTemplate(chat=False))

    @classmethod
    def of(cls, options: Mapping[str, Any], chat: bool) -> Self:
        """Create an instance from the options in a log. Invalid options become None, and unknown keys are ignored.

        If `chat` is true, the chat template is applied. Otherwise, each question is used as the prompt without changes.
        """
        known = {name: options[name] for name, field in DECODING.items() if field.holds(options.get(name))}
        return cls(**known, prompt=PromptTemplate(chat=chat))

    def record(self) -> dict[str, Any]:
        """Return the options as plain JSON types."""
        stop = None if self.stop is None else list(self.stop)
        return {**asdict(self), "stop": stop, "prompt": self.prompt.record()}


def grid(text: str) -> tuple[float, ...]:
    """Parse a temperature or a grid START:STOP:STEP. The grid includes STOP if a step reaches it.

    Raises:
        InputError: If `text` is neither a number nor a grid with at most 1,000 temperatures.

    >>> grid("0:0.3:0.1"), grid("0.7")
    ((0.0, 0.1, 0.2, 0.3), (0.7,))
    """
    try:
        start, stop, step = map(Decimal, text.split(":") if ":" in text else (text, text, "1"))
        if not (start <= stop and step > 0 and (stop - start) / step < 1000):
            raise ValueError
    except (ArithmeticError, ValueError):
        raise InputError(
            "Expected `policy.temperature` to be a number or a grid START:STOP:STEP with at most 1000 "
            f"temperatures, but got {text!r}. Pass, for example, 0.7 or 0:1.2:0.1."
        ) from None
    return tuple(float(start + i * step) for i in range(int((stop - start) / step) + 1))


@dataclass(frozen=True)
class ModelIdentity:
    """Identity of a model and its tokenizer. For a served model, only `id` is known.

    Attributes:
        id: smollm2-135m-instruct (installed by `make install`), a Hub id, the name of a folder (never its path), or the
            name of a model on a server.
        revision: Commit of a Hub model, otherwise None.
        fingerprint: Checksum of the loaded weights (`extract.models.loading.weight_fingerprint`).
        dtype: Dtype of the loaded weights, for example "float32".
        tokenizer: SHA-256 of the tokenizer.
        chat_template: SHA-256 of the chat template.
    """

    id: str
    revision: str | None = None
    fingerprint: str | None = None
    dtype: str | None = None
    tokenizer: str | None = None
    chat_template: str | None = None


@dataclass(frozen=True)
class Policy:
    """A model and its decoding options.

    Attributes:
        decoding: Decoding options with a single temperature.
        request: Other settings that affect the answers. For a server: the type of API and the additional request
            fields. For imported answers: their origin and hash, and the number of answers per question.
    """

    model: ModelIdentity
    decoding: Decoding | KnownDecoding
    request: dict[str, Any] | None = None


@dataclass(frozen=True)
class Identity:
    """Settings that identify a store.

    They do not include the number of samples per question, the device, the batch size or the number of workers.
    """

    policy: Policy
    questions: str
    block_size: int = 32
    sampler: str = SAMPLERS["local"].version
    schema: int = SCHEMA_VERSION

    def as_dict(self) -> dict[str, Any]:
        """Return the identity as plain JSON types."""
        policy = {"model": asdict(self.policy.model), "decoding": self.policy.decoding.record()}
        if self.policy.request is not None:
            policy["request"] = self.policy.request
        return {**asdict(self), "policy": policy}
