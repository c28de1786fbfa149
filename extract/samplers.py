"""Registry of samplers. Other modules read a sampler's declaration and never compare its name.

A new sampler is a class with the interface of `extract.sampling.base.Sampler` and an entry here.
"""

from dataclasses import dataclass
from typing import Any

from extract.registry import Registry, import_object


@dataclass(frozen=True)
class Declaration:
    """Properties of a sampler, its samples and its model.

    Attributes:
        version: Name and version number of the sampler, part of a store's identity. The number is increased when the
            same policy gives other samples.
        implementation: The class, or ``module:attribute``, which is imported on first use.
        weights: Whether the model's weights are available. Without them, a store knows the model only by name, and
            reading signals needs a local copy.
        end_token: Whether the tokens of a stopped answer include its end token, or the token that completed a stop
            string.
        nullable: Columns of the samples that can be null, a subset of `reasoning`, `token_ids`, `logprobs`, `n_tokens`
            and `prompt_tokens`. If empty, samples are stored in the compact schema.
    """

    version: str
    implementation: str | type
    weights: bool = False
    end_token: bool = False
    nullable: tuple[str, ...] = ()

    def load(self) -> Any:
        """Import the class."""
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
    """Name of the sampler with a given version, as in an identity's `sampler`.

    >>> sampler_name("local-2")
    'local'
    """
    return str(version).rpartition("-")[0]
