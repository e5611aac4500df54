"""From predictions to decisions: when to answer "don't know", sets that hold the truth, inputs unlike those learnt.

All of it rests on examples that were held out of the batches learnt. Of these, a few numbers each are kept, not the
examples themselves.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from vcl.errors import VclError
from vcl.evaluation import Prediction

MOST = 2000
"""How many held-out examples' numbers are kept."""
FEWEST = 30
"""With fewer held-out examples than this, a threshold would be guesswork."""
FAMILIAR = 0.99
"""The part of held-out examples whose epistemic entropy counts as familiar."""
MANY = 0.05
"""The part of new inputs above that which calls for a warning."""


@dataclass(frozen=True)
class HeldOut:
    """What is kept of the examples held out of the last batch of a task."""

    confidence: Float[np.ndarray, "n"]
    """The highest probability."""
    correct: Bool[np.ndarray, "n"]
    label_probability: Float[np.ndarray, "n"]
    """The probability of the true class."""
    epistemic: Float[np.ndarray, "n"]

    @staticmethod
    def of(prediction: Prediction, labels: Int[np.ndarray, "n"], most: int = MOST) -> "HeldOut":
        """From a prediction for held-out examples; a label of -1 is a class that is not known."""
        probabilities = prediction.probabilities[:most].astype(np.float64)
        labels = labels[:most]
        of_label = probabilities[np.arange(len(labels)), np.maximum(labels, 0)]
        return HeldOut(
            probabilities.max(axis=1),
            probabilities.argmax(axis=1) == labels,
            np.where(labels >= 0, of_label, 0.0),
            prediction.epistemic_entropy[:most].astype(np.float64),
        )

    def to_json(self) -> dict[str, Any]:
        # Not rounded: with a threshold that was rounded up, sets would hold the truth less often than promised.
        numbers = {name: getattr(self, name).tolist() for name in NUMBERS}
        return {**numbers, "correct": self.correct.astype(int).tolist()}

    @staticmethod
    def from_json(value: dict[str, Any]) -> "HeldOut":
        numbers = {name: np.array(value[name], np.float64) for name in NUMBERS}
        return HeldOut(**numbers, correct=np.array(value["correct"], bool))

    @property
    def size(self) -> int:
        return len(self.confidence)


NUMBERS = ("confidence", "label_probability", "epistemic")


def check_enough(held: HeldOut | None, what: str) -> HeldOut:
    if held is None or held.size < FEWEST:
        count = held.size if held else 0
        raise VclError(
            f"{what} needs at least {FEWEST} held-out examples of the task's last batch, but there are {count}. "
            "Learn with a larger --test FRACTION, or from a larger batch."
        )
    return held


def reject_below(held: HeldOut, risk: float) -> float:
    """The confidence below which to answer "don't know", so that about `risk` of the answers are wrong.

    The lowest threshold at which (wrong + 1) / (answered + 1) ≤ `risk` among held-out examples; infinite if there is
    none. One error is added because the lowest of many thresholds is one at which the held-out examples were lucky.
    If a part p of the answers just above the threshold is wrong, that luck is about p (1 - p) / (p - risk) errors:
    one if p is three to four times the risk, more if the error rate depends little on the confidence.

    >>> held = HeldOut(np.linspace(1, 0.6, 5), np.array([True] * 3 + [False, True]), np.ones(5), np.zeros(5))
    >>> reject_below(held, 0.35), reject_below(held, 0.25), reject_below(held, 0.2)
    (0.6, 0.8, inf)
    """
    if not 0 <= risk < 1:
        raise VclError(f"--reject is the part of answers that may be wrong, between 0 and 1, but it is {risk}.")
    _, risks, thresholds = risk_coverage(held)
    answered = np.arange(1, held.size + 1)
    # The rounding guards against (1 + 0.2 * 4) / 5 and its like.
    low = np.round((risks * answered + 1) / (answered + 1), 9) <= risk
    # Examples of equal confidence are answered all or none.
    good = np.flatnonzero(low & np.append(thresholds[1:] < thresholds[:-1], True))
    return float(thresholds[good[-1]]) if len(good) else math.inf


def risk_coverage(
    held: HeldOut,
) -> tuple[Float[np.ndarray, "n"], Float[np.ndarray, "n"], Float[np.ndarray, "n"]]:
    """Coverage, error rate and threshold when the most confident 1, 2, … n examples are answered."""
    order = np.argsort(-held.confidence, kind="stable")
    answered = np.arange(1, held.size + 1)
    return answered / held.size, np.cumsum(~held.correct[order]) / answered, held.confidence[order]


def set_above(held: HeldOut, coverage: float) -> float:
    """Classes at least this probable form sets that hold the truth with probability `coverage` (split conformal).

    The k-th smallest probability of a held-out example's own class, k = ⌊(n + 1)(1 - coverage)⌋; 0 for k = 0. It
    holds for examples that come from where the last batch came from.
    """
    if not 0 < coverage < 1:
        raise VclError(f"--coverage is how often a set must hold the truth, between 0 and 1, but it is {coverage}.")
    # The rounding guards against 0.1 * 11 = 1.1 - 1e-16 and its like.
    k = math.floor(round((held.size + 1) * (1.0 - coverage), 9))
    return float(np.sort(held.label_probability)[k - 1]) if k else 0.0


def unfamiliar(held: HeldOut | None, epistemic: Float[np.ndarray, "n"]) -> Bool[np.ndarray, "n"]:
    """Which inputs the model knows less about than about nearly all examples of the last batch."""
    if held is None or held.size < FEWEST:
        return np.zeros(len(epistemic), bool)
    return epistemic > np.quantile(held.epistemic, FAMILIAR)


def unfamiliar_warning(which: Bool[np.ndarray, "n"]) -> str:
    """A warning where more inputs are unlike what was learnt than chance explains, else nothing."""
    if which.mean() <= MANY or which.sum() < 3:
        return ""
    return (
        f"{which.sum()} of {len(which)} inputs look unlike what was learnt: their columns lie outside its range, "
        f"or the epistemic uncertainty is above that of {FAMILIAR:.0%} of held-out examples. Trust them less."
    )
