"""iCaRL with labels in the targets: three departures from Rebuffi et al. (2017) that raise its accuracy.

- The targets of old classes are d times the old outputs and 1 - d times the labels. With the paper's d = 1, a new
  example is trained to keep resembling the old classes that it resembled by chance before it was seen.
- An exemplar of an earlier task has more weight in the loss than a new example (`emphasis`; paper: 1).
- The initial weights are scaled down (`init_scale`; paper: 1), so that features are less random at first.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from vcl.core import StreamSpec
from vcl.errors import VclError
from vcl.methods.base.settings import Recipes, check_positive, family_settings
from vcl.methods.icarl import (
    Distillation,
    ICaRL,
    ICaRLState,
    binary_cross_entropy,
    labels_by_head,
    targets,
    tasks_of,
)
from vcl.nets import Weights, logits_by_head, pixels
from vcl.training import Batch, masked_mean


@dataclass(frozen=True)
class ICaRLLabels(ICaRL):
    """iCaRL with labels in the targets of old classes, more weight on exemplars and small initial weights.

    Examples
    --------
    >>> ICaRLLabels(emphasis=15.0).distillation
    0.1
    """

    emphasis: Annotated[float, "weight of an earlier task's exemplar relative to a new example (paper: 1)"] = 5.0
    distillation: Annotated[float, "d, the share of the old outputs in the targets of old classes (paper: 1)"] = 0.1
    init_scale: Annotated[float, "factor on the initial weights (paper: 1)"] = 0.1

    recipes: ClassVar[Recipes] = {
        "fast": family_settings(
            split={"emphasis": 5.0, "distillation": 0.1, "init_scale": 0.1, "epochs": 20},
            permuted={"emphasis": 30.0, "distillation": 1.0, "init_scale": 1.0},
            split_mnist={"learning_rate": 0.0017, "emphasis": 4.2, "distillation": 0.29},
        )
    }

    def __post_init__(self) -> None:
        ICaRL.__post_init__(self)
        check_positive(self, "emphasis", "init_scale")
        if not 0 <= self.distillation <= 1:
            raise VclError(f"--distillation must be a share, from 0 to 1, but it is {self.distillation}.")

    def init(self, key: Key[Array, ""], spec: StreamSpec) -> ICaRLState:
        state = ICaRL.init(self, key, spec)
        return eqx.tree_at(lambda s: s.network, state, jax.tree.map(lambda a: self.init_scale * a, state.network))

    def loss(self, key: Key[Array, ""], network: Weights, before: Distillation, batch: Batch) -> Float[Array, ""]:
        """Weighted binary cross-entropy of all outputs seen so far against their mixed targets."""
        inputs, d = pixels(batch.inputs), self.distillation
        distilled = targets(before, logits_by_head(before.network, inputs), batch)
        wanted = d * distilled + (1.0 - d) * labels_by_head(before, batch)
        losses = binary_cross_entropy(logits_by_head(network, inputs), wanted, before)
        weights = jnp.where(tasks_of(batch) != before.task, self.emphasis, 1.0)
        return masked_mean(weights * losses, batch.mask)
