"""The samplers, and what each declares about its samples and its model. Everything else asks the declaration.

A new sampler is a class like `extract.sampling.base.Sampler` and an entry here.
"""

from dataclasses import dataclass
from typing import Any

from extract.registry import Registry, import_object


@dataclass(frozen=True)
class Declaration:
    """What a sampler declares.

    Attributes:
        version: Name of the sampler and a number that is raised whenever the same policy would give other samples; a
            store's identity holds it.
        implementation: The class, or its place as ``module:attribute``, which is imported when something is sampled.
        weights: Whether the model's weights are at hand. Without them a store knows the model by name only, and a local
            copy is needed to read signals.
        end_token: Whether an answer that stopped ends with its end token, or the one that completed a stop text.
        nullable: Columns of the samples that may be null, of `reasoning`, `token_ids`, `logprobs`, `n_tokens` and
            `prompt_tokens`. Without any, samples are stored in the compact form of the local sampler.
    """

    version: str
    implementation: str | type
    weights: bool = False
    end_token: bool = False
    nullable: tuple[str, ...] = ()

    def load(self) -> Any:
        """The class."""
        return import_object(self.implementation) if isinstance(self.implementation, str) else self.implementation


SAMPLERS = Registry(
    "sampler",
    {
        "local": Declaration("local-2", "extract.sampling.local.sampler:LocalSampler", weights=True, end_token=True),
        "server": Declaration(
            "server-1",
            "extract.sampling.server.sampler:ServerSampler",
            nullable=("reasoning", "token_ids", "logprobs", "n_tokens", "prompt_tokens"),
        ),
    },
)


def sampler_name(version: object) -> str:
    """Name of the sampler that an identity's `sampler` stands for.

    >>> sampler_name("local-2")
    'local'
    """
    return str(version).rpartition("-")[0]
