"""An alarm when new labelled data is less probable under the model than the last batch was."""

import importlib.util
import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

LOWEST = -5.0
"""Log-likelihoods are cut off here: the detector needs bounded numbers."""


def river_is_there() -> bool:
    return importlib.util.find_spec("river") is not None


class Drift(NamedTuple):
    """What an alarm has to say."""

    alarm: bool
    text: str = ""
    forgetting: float = 0.0
    """How much of what was learnt to give up: 1 minus the ratio of the labels' (geometric) mean probabilities."""


def drift(before: Float[np.ndarray, "m"], new: Float[np.ndarray, "n"], confidence: float = 0.002) -> Drift | None:
    """Whether the log-likelihood falls where `new` begins (ADWIN, Bifet & Gavaldà, 2007); None without river.

    `before` are log-likelihoods of examples held out of the last batch, `new` those of a batch not learnt yet.
    """
    if not river_is_there():
        return None
    from river.drift import ADWIN

    detector = ADWIN(delta=confidence)
    alarm = False
    for number, value in enumerate([*before, *new]):
        detector.update(float(1.0 - max(value, LOWEST) / LOWEST))
        alarm |= bool(detector.drift_detected) and number >= len(before)
    fallen = float(np.mean(new) - np.mean(before))
    if not alarm or fallen >= 0:
        return Drift(False)
    text = f"drift: the mean log-likelihood fell from {np.mean(before):.3f} to {np.mean(new):.3f} nats"
    return Drift(True, text, -math.expm1(fallen))
