"""Verification of an answer, in the format of the AutoMix verifiers for vLLM's semantic router.

The AutoMix verifiers sample verdicts from a language model. A probe samples nothing, so `verified_count` and
`total_samples` are 0.
"""

from typing import Any

from pydantic import Field

from probes.serving.protocol import Body, number

#: Default threshold of vLLM's semantic router.
THRESHOLD = 0.7


class VerifyRequest(Body):
    """Body of ``/verify``.

    Attributes:
        question: The question that the user asked.
        answer: The answer to verify. Probes that read only questions ignore it.
        context: Text to insert before the question, followed by a line break.
        threshold: Confidence below which the caller should ask a larger model.
    """

    question: str = Field(min_length=1)
    answer: str = Field(min_length=1)
    context: str | None = None
    threshold: float = Field(THRESHOLD, ge=0, le=1)

    @property
    def prompt(self) -> str:
        """Text that is inserted into the probe's prompt template."""
        return f"{self.context}\n{self.question}" if self.context else self.question


def verdict(request: VerifyRequest, reads_answers: bool, score: tuple[float, float, bool]) -> dict[str, Any]:
    """Return the response to a request. `score` is a tuple of the confidence, the novelty and the `is_novel` flag."""
    confidence, novelty, is_novel = score
    return {
        "confidence": number(confidence),
        "should_escalate": not confidence >= request.threshold,
        "verified_count": 0,
        "total_samples": 0,
        "samples": [],
        "threshold": request.threshold,
        "novelty": number(novelty),
        "is_novel": is_novel,
        "answer_was_read": reads_answers,
    }
