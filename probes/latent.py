"""The latent probe: how widely the answers to a question would scatter, read from its hidden state."""

import math

import torch
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor, nn

from datamodules.batches import Batch
from datamodules.semantic import seu
from extract.errors import InputError
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
from probes.fitting.module import Choice
from probes.fitting.training import Descent
from probes.saved.head import Head, LatentHead

_PARAMETERS = ("weight_in", "bias_in", "weight", "bias", "log_shared")


class Latent(Descent):
    """An encoder of every layer that learns to predict the embeddings of a question's sampled answers.

    No grade is used in training: the likelihood is that of the training questions' answers (`answer_loss`), and of
    each candidate the epoch is kept whose scores rank the validation questions most like the agreement of their
    answers, 1 − SEU. Layer and penalty are then chosen by the datamodule's target, as for every probe, and the score,
    1 − ASEU, becomes a confidence through a calibrator.

    A checkpoint holds the weights of its epoch with the best ones so far; fitting ends with the best ones.

    Args:
        hidden: Units of the hidden layer.
        components: Components of the embeddings that are predicted: those in which the training answers reach furthest.
        lr: Learning rate of Adam at the start; it falls to 0 along a cosine.
        l2: Penalties λ to try, or one. λ/2 · the squares of all weights is added to the mean loss, in nats per answer.
        calibrator: How scores become confidences, fitted on validation: platt or isotonic.
    """

    name = "latent"
    taught = (
        "The probe was taught how far the embeddings of a question's answers lie apart, without grades; layer, "
        "calibrator and metrics use the accuracy p̂, the share of right answers."
    )
    penalised = ("weight_in", "weight")
    needs = ("text_embedding",)
    log_odds = False
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
        for argument, value, default in (("hidden", hidden, 64), ("components", components, 128)):
            if value < 1:
                raise InputError(f"Expected `{argument}` to be at least 1, but got {value}. {default} is the default.")
        self.save_hyperparameters()
        self.hidden, self.components = hidden, components

    def setup(self, stage: str) -> None:
        """Read the answers' embeddings.

        Raises:
            InputError: If rows are answers, or embeddings are missing or have fewer than `components` components.
        """
        if self.data.scope != "question":
            raise InputError(
                "Expected `target` to be one of questions for the probe Latent, which predicts how their answers "
                f"scatter, but got {self.data.target!r}. Use --data.target=capability."
            )
        super().setup(stage)
        if stage != "fit":
            return
        embeddings = self.data.answer_embeddings()
        if self.components > embeddings.shape[-1]:
            raise InputError(
                f"Expected `components` to be at most {embeddings.shape[-1]}, the width of the answers' embeddings, "
                f"but got {self.components}. Use --model.components={embeddings.shape[-1]}."
            )
        answers = summarise(embeddings, principal_axes(embeddings[self.data.question_rows["train"]], self.components))
        agreement = torch.tensor([1 - seu(vectors) for vectors in embeddings.numpy()], dtype=torch.float64)
        self.answer_number, self.answer_mean, self.answer_variance, self.answer_agreement = (
            nn.Buffer(value.to(self.device), persistent=False) for value in (*answers, agreement)
        )

    def make_candidates(self, n_features: int, d_model: int) -> None:
        """Weights of the encoders, alike for all candidates of a feature, log τ², and room for the best ones so far."""
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
        """μ and σ, [penalty, feature, row, component] each, from standardised features [row, feature, d_model]."""
        return encode(features.transpose(0, 1), self.weight_in, self.bias_in, self.weight, self.bias)

    def candidate_scores(self, features: Tensor) -> Tensor:
        """Scores [penalty, row, feature], median cosines of drawn answers."""
        shared = self.log_shared.exp().sum(-1)
        return sampled_score(self.predicted(features), shared, self.noise).transpose(1, 2)

    def loss(self, batch: Batch) -> Tensor:
        """Negative log-likelihood of the answers' embeddings in nats per answer, [penalty, feature]."""
        moments = (self.answer_number, self.answer_mean, self.answer_variance)
        answers = Answers(*(moment[batch.question] for moment in moments))
        return answer_loss(self.predicted(self.standardised(batch.features)), self.log_shared.exp(), answers)

    def candidate_head(self, penalty: int, feature: int) -> Head:
        """One candidate as a head."""
        head = LatentHead(self.weight_in.shape[2], self.hidden, self.components)
        own = {name: getattr(self, name)[penalty, feature, 0] for name in ("bias_in", "bias")}
        own |= {"shared": self.log_shared[penalty, feature].exp().sum(), "noise": self.noise}
        return self.filled(head, penalty, feature, "weight_in", "weight", **own)

    def _choose(self, scores: Tensor, batch: Batch) -> Choice:
        """Keep the weights of candidates that rank better than ever before, and choose as every probe does."""
        rank = self._keep_best(scores, batch)
        choice = super()._choose(scores, batch)
        self.val_figures["val/spearman_agreement"] = float(rank[choice.candidate, choice.feature])
        return choice

    def _keep_best(self, scores: Tensor, batch: Batch) -> Tensor:
        """Returns the rank correlations with the agreement of the answers, [penalty, feature]."""
        agreement = self.answer_agreement[batch.question]
        rank = torch.stack([rank_correlations(candidates, agreement) for candidates in scores])
        better = rank > self.best_rank
        for name in _PARAMETERS:
            getattr(self, f"best_{name}")[better] = getattr(self, name).detach()[better]
        self.best_rank[better] = rank[better]
        return rank

    @torch.no_grad()
    def on_train_end(self) -> None:
        """Go back to the best weights of every candidate, choose and calibrate with them, and look for a collapse."""
        batch = self.data.batch("val").to(self.device)
        features = self.standardised(batch.features)
        self._keep_best(self.candidate_scores(features), batch)
        for name in _PARAMETERS:
            getattr(self, name).copy_(getattr(self, f"best_{name}"))
        super().on_train_end()
        assert self.choice is not None
        candidate, feature = self.choice.candidate, self.choice.feature
        scores, deviation = self.candidate_scores(features)[candidate, :, feature], self.predicted(features).deviation
        self.warning = collapse(scores, self.answer_agreement[batch.question], deviation[candidate, feature])
        if self.warning is not None:
            rank_zero_warn(self.warning)
