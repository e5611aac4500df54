"""Elastic weight consolidation (Kirkpatrick et al., 2017).

A Laplace approximation with a diagonal Fisher F: task t minimises

    -(1/N) Σ_n log p(y_n | x_n, θ) + (λ/2) Σ_{k<t} Σ_i F_{k,i} (θ_i - θ*_{k,i})²,

with the weights θ*_k after task k. A sum of quadratics is one quadratic: with the precision P = Σ_k F_k and the
centre m = Σ_k F_k θ*_k / P it is (λ/2) Σ_i P_i (θ_i - m_i)² plus a constant, so memory does not grow with the tasks.
The online form, with one anchor, is `vcl.methods.variants.ewc_online`.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from vcl.core import Fit, StreamSpec, Task
from vcl.curvature import diagonal_fisher
from vcl.methods.base.penalty import quadratic
from vcl.methods.base.point import PointLearner, negative_log_likelihood
from vcl.methods.base.settings import Recipes, check_not_negative, family_settings
from vcl.nets import Weights, random, replace_head, select_head
from vcl.training import Adam, Batch, Data


class EWCState(eqx.Module):
    network: Weights
    precision: Weights
    """P: the importance of each weight for the tasks so far."""
    centre: Weights
    """m: the value that the penalty pulls each weight towards."""


@dataclass(frozen=True)
class EWC(PointLearner):
    """Elastic weight consolidation: a quadratic penalty on important weights, by diagonal Fisher information.

    Examples
    --------
    >>> EWC(strength=100.0).strength
    100.0
    """

    strength: Annotated[float, "λ, the weight of the penalty (0: fine-tuning)"] = 1000.0
    fisher: Annotated[
        Literal["exact", "sampled", "empirical"], "labels from the model (all, or one drawn), or the true ones"
    ] = "exact"

    recipes: ClassVar[Recipes] = {
        "fast": family_settings(
            split={"strength": 1000.0},
            permuted={"strength": 10.0, "learning_rate": 0.003, "schedule": "cosine"},
            split_mnist={"strength": 1300.0, "learning_rate": 0.0087, "schedule": "cosine"},
        ),
        # The paper's rate and epochs; it gives no λ that fits these networks, so λ is from our search.
        "published": family_settings(
            split={"strength": 1000.0, "epochs": 20, "learning_rate": 0.001},
            permuted={"strength": 10.0, "epochs": 20, "learning_rate": 0.001},
        ),
    }

    def __post_init__(self) -> None:
        PointLearner.__post_init__(self)
        check_not_negative(self, "strength")

    def init(self, key: Key[Array, ""], spec: StreamSpec) -> EWCState:
        network = random(key, self.architecture, spec)
        return EWCState(network, jax.tree.map(jnp.zeros_like, network), network)

    def observe(self, key: Key[Array, ""], state: EWCState, task: Task, data: Data, fit: Fit) -> EWCState:
        start, precision, centre = select_head((state.network, state.precision, state.centre), task.head)
        step = Adam(self.loss, self.learning_rate, self.schedule)
        network = fit(
            key, "train", step, start, (precision, centre), data, epochs=self.epochs, batch_size=self.batch_size
        )
        fisher = diagonal_fisher(jax.random.fold_in(key, 1), network, data, self.fisher)
        precision, centre = self.consolidate(precision, centre, fisher, network)
        return EWCState(
            replace_head(state.network, task.head, network),
            replace_head(state.precision, task.head, precision),
            replace_head(state.centre, task.head, centre),
        )

    def consolidate(
        self, precision: Weights, centre: Weights, fisher: Weights, network: Weights
    ) -> tuple[Weights, Weights]:
        """P and m after a task that ended at `network` with this Fisher information."""
        centre = jax.tree.map(weighted_mean, precision, centre, fisher, network)
        return jax.tree.map(jnp.add, precision, fisher), centre

    def readout(self, key: Key[Array, ""], state: EWCState, task: Task, fit: Fit) -> Weights:
        return select_head(state.network, task.head)

    def loss(
        self, key: Key[Array, ""], network: Weights, held: tuple[Weights, Weights], batch: Batch
    ) -> Float[Array, ""]:
        """-(1/N) log likelihood + (λ/2) Σ_i P_i (θ_i - m_i)²."""
        return negative_log_likelihood(network, batch) + 0.5 * self.strength * quadratic(network, *held)


def weighted_mean(
    old_weight: Float[Array, "*s"], old: Float[Array, "*s"], new_weight: Float[Array, "*s"], new: Float[Array, "*s"]
) -> Float[Array, "*s"]:
    """The weighted mean of two values; the newer one where both weights are zero."""
    total = old_weight + new_weight
    return jnp.where(total > 0, (old_weight * old + new_weight * new) / jnp.where(total > 0, total, 1.0), new)
