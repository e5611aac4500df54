"""Reliability and risk of answers, as charts: for runs and for models of one's own data."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from vcl.report.page.charts import Curve, curve_chart, nice_ticks
from vcl.report.page.downloads import download

BINS = 10
MOST_POINTS = 100
PERCENT = [(tick / 100, f"{tick} %") for tick in (0, 25, 50, 75, 100)]


class Answers(NamedTuple):
    """Answers to the test examples of a task, or to examples that were held out."""

    name: str
    confidence: Float[np.ndarray, "n"]
    """The highest probability."""
    correct: Bool[np.ndarray, "n"]


def charts(tasks: Sequence[Answers]) -> str:
    """How often answers of each confidence are right, and what answering fewer of them gains."""
    pooled = Answers(
        "all tasks", np.concatenate([t.confidence for t in tasks]), np.concatenate([t.correct for t in tasks])
    )
    several = [pooled, *tasks] if len(tasks) > 1 else [pooled]
    bins = reliability(pooled)
    risks = [risk_by_coverage(answers) for answers in several]
    most = max(max(up) for _, _, up in risks)
    ticks = [(tick / 100, f"{tick:g} %") for tick in nice_ticks(0.0, max(100 * most, 1.0))]
    return f"""<div class="pair"><div>{
        curve_chart(
            "Reliability: how often answers of each confidence are right",
            ("confidence", "right"),
            [bins],
            x_ticks=PERCENT,
            y_ticks=PERCENT,
            ideal=True,
        )
    }{download("reliability", ["confidence", "right"], zip(bins[1], bins[2], strict=True))}</div><div>{
        curve_chart(
            "Risk and coverage: errors when only the surest answers are given",
            ("answered", "wrong"),
            risks,
            x_ticks=PERCENT,
            y_ticks=ticks,
        )
    }{
        download(
            "risk-coverage",
            ["examples", "answered", "wrong"],
            ((name, a, b) for name, across, up in risks for a, b in zip(across, up, strict=True)),
        )
    }</div></div>"""


def reliability(answers: Answers) -> Curve:
    """Mean confidence and accuracy in the bins of confidence that hold examples."""
    which = np.minimum((answers.confidence * BINS).astype(int), BINS - 1)
    filled = [which == number for number in range(BINS) if (which == number).any()]
    return (
        answers.name,
        [float(answers.confidence[rows].mean()) for rows in filled],
        [float(answers.correct[rows].mean()) for rows in filled],
    )


def risk_by_coverage(answers: Answers) -> Curve:
    """The part of wrong answers among the surest ones, by the part that is answered.

    >>> risk_by_coverage(Answers("", np.array([0.9, 0.6]), np.array([True, False])))
    ('', [0.5, 1.0], [0.0, 0.5])
    """
    wrong = np.cumsum(~answers.correct[np.argsort(-answers.confidence, kind="stable")])
    counts = np.unique(np.linspace(1, len(wrong), MOST_POINTS).round().astype(int))
    return answers.name, (counts / len(wrong)).tolist(), (wrong[counts - 1] / counts).tolist()
