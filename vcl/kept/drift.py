"""An alarm when new labelled data is less probable under the model than the last batch was."""

import numpy as np
from jaxtyping import Float

LOWEST = -5.0
"""Log-likelihoods are cut off here: the detector needs bounded numbers."""


def drift(
    before: Float[np.ndarray, "m"], new: Float[np.ndarray, "n"], confidence: float = 0.002
) -> tuple[bool, str] | None:
    """Whether the log-likelihood falls where `new` begins (ADWIN, Bifet & Gavaldà, 2007); None without river.

    `before` are log-likelihoods of examples held out of the last batch, `new` those of a batch not learnt yet.
    """
    try:
        from river.drift import ADWIN
    except ImportError:
        return None
    detector = ADWIN(delta=confidence)
    alarm = False
    for number, value in enumerate([*before, *new]):
        detector.update(float(1.0 - max(value, LOWEST) / LOWEST))
        alarm |= bool(detector.drift_detected) and number >= len(before)
    fallen = float(np.mean(new) - np.mean(before))
    if not alarm or fallen >= 0:
        return False, ""
    return True, f"drift: the mean log-likelihood fell from {np.mean(before):.3f} to {np.mean(new):.3f} nats"
