"""Latent probe, which predicts how much the answers to a question vary."""

import math

import torch
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor, nn

from datamodules.batches import Batch
from datamodules.semantic import seu
from extract.errors import InputError, at_least_one
from probes.fitting.choice import Choice
from probes.fitting.latent_model import (
    Answers,
    Gaussian,
    answer_loss,
    collapse,
    drawn_noise,
    encode,
    initial_weights,
    principal_axes,
    rank_correlations,
    sampled_score,
    summarise,
)
from probes.fitting.training import Descent
from probes.saved.head import Head, LatentHead

_PARAMETERS = ("weight_in", "bias_in", "weight", "bias", "log_shared")


class Latent(Descent):
    """Encoder that predicts the distribution of a question's answer embeddings.

    The score is the similarity of embeddings drawn from this distribution (see `sampled_score`). It equals 1 − ASEU,
    where ASEU is the amortised semantic embedding uncertainty. Training maximises the likelihood of the answer
    embeddings (see `answer_loss`). It does not use grades.

    Each combination of a layer and a penalty is a candidate. A candidate keeps the weights from its best epoch. This is
    the epoch whose validation scores have the highest rank correlation with the agreement of the answers. The agreement
    is the mean cosine similarity between answer embeddings (1 − SEU). After training, the candidate with the lowest
    validation loss is chosen and calibrated.

    Args:
        hidden: Number of hidden units.
        components: Number of principal components that represent an answer embedding. They are computed on the training
            questions, without centring.
        lr: Initial learning rate of Adam, annealed to 0 on a cosine schedule.
        l2: L2 penalty λ, or a list of penalties to try. λ/2 times the sum of squared weights is added to the mean loss.
        calibrator: Calibrator for the scores, fitted on the validation split: platt or isotonic.
    """

    name = "latent"
    taught = (
        "The probe was trained, without grades, to predict how far apart the embeddings of a question's answers are. "
        "The layer, the calibrator and the metrics are based on the accuracy p̂, the fraction of right answers."
    )
    penalised = ("weight_in", "weight")
    needs = ("text_embedding",)
    log_odds = False
    streamed = False
    weight_in: nn.Parameter
    bias_in: nn.Parameter
    weight: nn.Parameter
    bias: nn.Parameter
    log_shared: nn.Parameter

    def __init__(
        self,
        hidden: int = 64,
        components: int = 128,
        lr: float = 0.001,
        l2: list[float] | float = 0.0,
        calibrator: str = "platt",
    ) -> None:
        super().__init__(lr, l2, calibrator)
        self.hidden = at_least_one("hidden", hidden, default=64)
        self.components = at_least_one("components", components, default=128)

    def setup(self, stage: str) -> None:
        """Read the answer embeddings and compute their principal components.

        Raises:
            InputError: If the target is answer-level, or if answer embeddings are missing or have too few dimensions.
        """
        if self.data.scope != "question":
            raise InputError(
                f"Expected `target` to be question-level for the Latent probe, but got {self.data.target!r}. Use "
                "--data.target=capability."
            )
        super().setup(stage)
        if stage != "fit":
            return
        embeddings = self.data.answer_embeddings()
        if self.components > embeddings.shape[-1]:
            raise InputError(
                f"Expected `components` to be at most {embeddings.shape[-1]}, but got {self.components}. The answer "
                f"embeddings have {embeddings.shape[-1]} dimensions. Use --model.components={embeddings.shape[-1]}."
            )
        answers = summarise(embeddings, principal_axes(embeddings[self.data.question_rows["train"]], self.components))
        agreement = torch.tensor([1 - seu(vectors) for vectors in embeddings.numpy()], dtype=torch.float64)
        self.answer_number, self.answer_mean, self.answer_variance, self.answer_agreement = (
            nn.Buffer(value.to(self.device), persistent=False) for value in (*answers, agreement)
        )

    def make_candidates(self, n_features: int, d_model: int) -> None:
        """Create the parameters of all candidates, and buffers for their best weights.

        Candidates that read the same feature start with the same parameters.
        """
        n = len(self.penalties)
        weights = initial_weights(n_features, d_model, self.hidden, self.components)
        weights["log_shared"] = torch.full((n_features, 1, self.components), -math.log(self.components))
        for name in _PARAMETERS:
            value = weights[name].repeat(n, 1, 1, 1)
            setattr(self, name, nn.Parameter(value))
            self.register_buffer(f"best_{name}", value.clone())
        self.best_rank = nn.Buffer(torch.full((n, n_features), -torch.inf, dtype=torch.float64))
        self.noise = nn.Buffer(drawn_noise(self.components), persistent=False)

    def predicted(self, features: Tensor) -> Gaussian:
        """Predict answer embeddings [penalty, feature, row, component] from features [row, feature, d_model]."""
        return encode(features.transpose(0, 1), self.weight_in, self.bias_in, self.weight, self.bias)

    def candidate_scores(self, features: Tensor) -> Tensor:
        """Return the scores [penalty, row, feature]."""
        shared = self.log_shared.exp().sum(-1)
        return sampled_score(self.predicted(features), shared, self.noise).transpose(1, 2)

    def loss(self, batch: Batch) -> Tensor:
        """Return the negative log-likelihood [penalty, feature] of the answer embeddings in nats per answer."""
        moments = (self.answer_number, self.answer_mean, self.answer_variance)
        answers = Answers(*(moment[batch.question] for moment in moments))
        return answer_loss(self.predicted(self.standardised(batch.features)), self.log_shared.exp(), answers)

    def candidate_head(self, penalty: int, feature: int) -> Head:
        """See `ProbeModule.candidate_head`."""
        head = LatentHead(self.weight_in.shape[2], self.hidden, self.components)
        own = {name: getattr(self, name)[penalty, feature, 0] for name in ("bias_in", "bias")}
        own |= {"shared": self.log_shared[penalty, feature].exp().sum(), "noise": self.noise}
        return self.filled(head, penalty, feature, "weight_in", "weight", **own)

    def _choose(self, scores: Tensor, batch: Batch) -> Choice:
        """Update the best weights, then choose a candidate."""
        rank = self._keep_best(scores, batch)
        choice = super()._choose(scores, batch)
        self.val_figures["val/spearman_agreement"] = float(rank[choice.candidate, choice.features[0]])
        return choice

    def _keep_best(self, scores: Tensor, batch: Batch) -> Tensor:
        """Save each candidate's best weights so far, and return the rank correlations [penalty, feature]."""
        agreement = self.answer_agreement[batch.question]
        rank = torch.stack([rank_correlations(candidates, agreement) for candidates in scores])
        better = rank > self.best_rank
        for name in _PARAMETERS:
            getattr(self, f"best_{name}")[better] = getattr(self, name).detach()[better]
        self.best_rank[better] = rank[better]
        return rank

    @torch.no_grad()
    def on_train_end(self) -> None:
        """Restore the best weights, choose and calibrate a candidate, and warn if its latent spread has collapsed."""
        batch = self.data.batch("val").to(self.device)
        features = self.standardised(batch.features)
        self._keep_best(self.candidate_scores(features), batch)
        for name in _PARAMETERS:
            getattr(self, name).copy_(getattr(self, f"best_{name}"))
        super().on_train_end()
        assert self.choice is not None
        candidate, feature = self.choice.candidate, self.choice.features[0]
        scores, deviation = self.candidate_scores(features)[candidate, :, feature], self.predicted(features).deviation
        collapsed = collapse(scores, self.answer_agreement[batch.question], deviation[candidate, feature])
        if collapsed is not None:
            self.warning = collapsed
            rank_zero_warn(collapsed)
