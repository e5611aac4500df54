"""CLNP with a recovery phase: after pruning, the task's new units are trained on without the penalty.

Two departures from Golkar et al. (2019): the recovery phase, which makes up for the accuracy that penalty and
pruning cost, and an L1 penalty divided by a unit's number d of inputs, λ Σ_u Σ_i |θ_ui| / d, so that one λ serves
layers of all widths.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from jaxtyping import Array, Float, Key

from vcl.core import Fit
from vcl.methods.base.settings import Recipes, check_not_negative, family_settings
from vcl.methods.clnp import CHOSEN, CLNP, Masks
from vcl.nets import Affine, Weights
from vcl.training import Adam, Data


@dataclass(frozen=True)
class CLNPRecovery(CLNP):
    """CLNP with training after pruning and a penalty per input, so that more can be pruned.

    Examples
    --------
    >>> CLNPRecovery(recovery=3).strength
    1.0
    """

    strength: Annotated[float, "λ, the weight of the L1 penalty"] = 1.0
    margin: Annotated[float, "accuracy (between 0 and 1) sacrificed to prune units, before the recovery"] = 0.1
    recovery: Annotated[int, "passes over the data after pruning, without the penalty (0: none, as published)"] = 5
    per_input: Annotated[bool, "divide the penalty on a unit by its number of inputs (published: not)"] = True

    recipes: ClassVar[Recipes] = {
        "fast": family_settings(
            split={**CHOSEN, "strength": 0.1, "margin": 0.002, "epochs": 5, "recovery": 5},
            permuted={**CHOSEN, "strength": 1.5, "margin": 0.1, "epochs": 4, "recovery": 6},
            split_mnist={"learning_rate": 0.0062, "strength": 0.019, "margin": 0.0015},
        )
    }

    def __post_init__(self) -> None:
        CLNP.__post_init__(self)
        check_not_negative(self, "recovery")

    def after_pruning(self, key: Key[Array, ""], network: Weights, masks: Masks, data: Data, fit: Fit) -> Weights:
        """Train the task's new units on, without the penalty."""
        if not self.recovery:
            return network
        step = Adam(self.loss, self.learning_rate, self.schedule)
        return fit(key, "recover", step, network, masks, data, epochs=self.recovery, batch_size=self.batch_size)

    def norms(self, layer: Affine) -> Float[Array, "o"]:
        """Σ_i |θ_ui| / d for each unit u."""
        return CLNP.norms(self, layer) / (layer.weight.shape[0] if self.per_input else 1)
