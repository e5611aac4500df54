"""Online EWC (Schwarz et al., 2018): EWC with one anchor and a Fisher information that decays.

Task t minimises

    -(1/N) Σ_n log p(y_n | x_n, θ) + (λ/2) Σ_i P_i (θ_i - θ*_i)²,

where θ* are the weights after the last task and P ← γ P + F_t. `vcl.methods.ewc`, by contrast, has an anchor for
each task. Schwarz et al. also normalise F_t, which is left out here.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import jax

from vcl.errors import VclError
from vcl.methods.base.settings import Recipes, family_settings
from vcl.methods.ewc import EWC
from vcl.nets import Weights


@dataclass(frozen=True)
class EWCOnline(EWC):
    """Online EWC: a quadratic penalty around the last task's weights, by decaying Fisher information.

    Examples
    --------
    >>> EWCOnline(strength=10.0, decay=0.9).decay
    0.9
    """

    decay: Annotated[float, "γ, the factor on the old Fisher information after each task"] = 1.0

    recipes: ClassVar[Recipes] = {
        "fast": family_settings(
            split={"strength": 1000.0},
            permuted={"strength": 10.0, "learning_rate": 0.003, "schedule": "cosine"},
            split_mnist={"strength": 3300.0, "learning_rate": 0.0083, "schedule": "cosine"},
        )
    }

    def __post_init__(self) -> None:
        EWC.__post_init__(self)
        if not 0 <= self.decay <= 1:
            raise VclError(f"--decay must be between 0 and 1, but it is {self.decay}.")

    def consolidate(
        self, precision: Weights, centre: Weights, fisher: Weights, network: Weights
    ) -> tuple[Weights, Weights]:
        """P = γ P + F_t, and θ*."""
        return jax.tree.map(lambda p, f: self.decay * p + f, precision, fisher), network
