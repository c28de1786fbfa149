"""Plot of accuracy against the number of answers, for votes and stopping rules."""

from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator, ScalarFormatter

from applications.voting.evaluation import BASE_RATE, WEIGHTED, Evaluation, prior_name
from applications.voting.record import label_of
from probes.report.plots import GREY, INK, METHOD_COLOURS, RED, new_figure, styled

_COLOURS = {
    prior_name(BASE_RATE): METHOD_COLOURS[5],
    "adaptive_consistency": METHOD_COLOURS[0],
    "early_stopping": METHOD_COLOURS[2],
    "two_stage": METHOD_COLOURS[3],
}


@styled
def vote_picture(evaluation: Evaluation) -> Figure:
    """Plot accuracy against the mean number of answers, with dots at the chosen thresholds."""
    figure, axes = new_figure(5.8, 4.2)
    axes.plot(evaluation.numbers, evaluation.mean_curve, color=GREY, lw=1.4, ls="--", label="majority vote")
    own = iter((RED, METHOD_COLOURS[4], METHOD_COLOURS[1]) * len(evaluation.methods))
    for name, method in evaluation.methods.items():
        if method.frontier is not None:
            colour = _COLOURS.get(name) or next(own)
            answers, accuracy = method.frontier.answers.mean(1), method.frontier.accuracy.mean(1)
            order = answers.argsort()
            axes.plot(answers[order], accuracy[order], color=colour, lw=1.5, marker=".", ms=4, label=label_of(name))
            chosen = method.outcome
            axes.plot(chosen.answers.mean(), chosen.accuracy.mean(), color=colour, marker="o", ms=6)
    if WEIGHTED in evaluation.methods:
        chosen = evaluation.methods[WEIGHTED].outcome
        point = {"color": INK, "marker": "D", "ms": 5, "ls": "", "label": label_of(WEIGHTED)}
        axes.plot(chosen.answers.mean(), chosen.accuracy.mean(), **point)
    axes.set(xscale="log", xlabel="mean number of answers used", ylabel="accuracy of the decision")
    axes.set_xticks([n for n in (1, 2, 5, 10, 20, 50, 100, 200, 500) if n <= evaluation.numbers[-1]])
    axes.xaxis.set_major_formatter(ScalarFormatter())
    axes.xaxis.set_minor_locator(NullLocator())
    axes.grid(color="#e4e4e4", lw=0.7)
    axes.set_axisbelow(True)
    axes.legend(loc="lower right", fontsize=8)
    return figure
