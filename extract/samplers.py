"""Registry of samplers. Other modules use a sampler's declared properties, never its name.

To add a sampler, write a subclass of `extract.sampling.base.Sampler` and register it in `SAMPLERS`.
"""

from dataclasses import dataclass
from typing import Any

from extract.registry import Registry, import_object


@dataclass(frozen=True)
class Declaration:
    """Properties of a sampler, its samples and its model.

    Attributes:
        version: Name and version number, for example ``local-2``. Part of a store's identity. Increase the number if a
            change affects the samples.
        implementation: The class, or its import path ``module:attribute``.
        weights: Whether the model's weights are available. If not, a store records only the model's name.
        end_token: Whether the tokens of an answer include the end-of-sequence token, or the token that completed a stop
            string.
        nullable: Nullable columns of the samples table: any of `reasoning`, `token_ids`, `logprobs`, `n_tokens` and
            `prompt_tokens`. If empty, `reasoning` and `n_tokens` are not stored.
        complete_policy: Whether all decoding options are known. Unknown options are null in a store's identity.
    """

    version: str
    implementation: str | type
    weights: bool = False
    end_token: bool = False
    nullable: tuple[str, ...] = ()
    complete_policy: bool = True

    def load(self) -> Any:
        """Return the class, importing it if necessary."""
        return import_object(self.implementation) if isinstance(self.implementation, str) else self.implementation


_NULLABLE = ("reasoning", "token_ids", "logprobs", "n_tokens", "prompt_tokens")
SAMPLERS = Registry(
    "sampler",
    {
        "local": Declaration("local-2", "extract.sampling.local.sampler:LocalSampler", weights=True, end_token=True),
        "server": Declaration("server-1", "extract.sampling.server.sampler:ServerSampler", nullable=_NULLABLE),
        "imported": Declaration(
            "imported-1",
            "extract.sampling.imported.sampler:ImportedSampler",
            nullable=_NULLABLE,
            complete_policy=False,
        ),
    },
)


def sampler_name(version: object) -> str:
    """Extract the name of a sampler from its recorded version.

    >>> sampler_name("local-2")
    'local'
    """
    return str(version).rpartition("-")[0]
