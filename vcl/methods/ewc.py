"""Elastic weight consolidation (Kirkpatrick et al., 2017; its online form: Schwarz et al., 2018).

A Laplace approximation with a diagonal Fisher F: task t minimises

    -(1/N) Σ_n log p(y_n | x_n, θ) + (λ/2) Σ_{k<t} Σ_i F_{k,i} (θ_i - θ*_{k,i})²,

with the weights θ*_k after task k. A sum of quadratics is one quadratic: with the precision P = Σ_k F_k and the
centre m = Σ_k F_k θ*_k / P it is (λ/2) Σ_i P_i (θ_i - m_i)² plus a constant: nothing grows with the tasks.
The online form has P = γ P + F_t and the newest weights as the centre.
"""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from vcl.core import Fit, StreamSpec, Task
from vcl.curvature import diagonal_fisher
from vcl.errors import VclError
from vcl.methods.penalty import quadratic
from vcl.methods.point import PointLearner, check_not_negative, negative_log_likelihood, recipes
from vcl.networks import MLP, random, replace_head, select_head
from vcl.training import Adam, Batch, Data


class EWCState(eqx.Module):
    network: MLP
    precision: MLP
    """P: how much each weight matters to the tasks so far."""
    centre: MLP
    """m: where the tasks so far want each weight to be."""


@dataclass(frozen=True)
class EWC(PointLearner):
    """Elastic weight consolidation: weights that mattered are held where they were by their Fisher information."""

    strength: Annotated[float, "λ, the weight of the penalty (0: fine-tuning)"] = 1000.0
    anchors: Annotated[
        Literal["separate", "online"], "hold weights where each task left them, or where the last one did"
    ] = "separate"
    decay: Annotated[float, "γ, what the online form keeps of the old Fisher information"] = 1.0
    fisher: Annotated[
        Literal["exact", "sampled", "empirical"], "labels from the model (all, or one drawn), or the true ones"
    ] = "exact"

    recipes: ClassVar[dict[str, dict[str, dict[str, Any]]]] = recipes(
        split={"strength": 1000.0},
        permuted={"strength": 10.0, "anchors": "online", "learning_rate": 0.003, "schedule": "cosine"},
    )

    def __post_init__(self) -> None:
        PointLearner.__post_init__(self)
        check_not_negative(self, "strength")
        if not 0 <= self.decay <= 1:
            raise VclError(f"--decay must be between 0 and 1, but it is {self.decay}.")

    def init(self, key: Key[Array, ""], spec: StreamSpec) -> EWCState:
        network = random(key, self.hidden, spec)
        return EWCState(network, jax.tree.map(jnp.zeros_like, network), network)

    def observe(self, key: Key[Array, ""], state: EWCState, task: Task, data: Data, fit: Fit) -> EWCState:
        start, precision, centre = select_head((state.network, state.precision, state.centre), task.head)
        step = Adam(self.loss, self.learning_rate, self.schedule)
        network = fit(
            key, "train", step, start, (precision, centre), data, epochs=self.epochs, batch_size=self.batch_size
        )
        fisher = diagonal_fisher(jax.random.fold_in(key, 1), network, data, self.fisher)
        if self.anchors == "online":
            precision = jax.tree.map(lambda p, f: self.decay * p + f, precision, fisher)
            centre = network
        else:
            centre = jax.tree.map(weighted_mean, precision, centre, fisher, network)
            precision = jax.tree.map(jnp.add, precision, fisher)
        return EWCState(
            replace_head(state.network, task.head, network),
            replace_head(state.precision, task.head, precision),
            replace_head(state.centre, task.head, centre),
        )

    def readout(self, key: Key[Array, ""], state: EWCState, task: Task, fit: Fit) -> MLP:
        return select_head(state.network, task.head)

    def loss(self, key: Key[Array, ""], network: MLP, held: tuple[MLP, MLP], batch: Batch) -> Float[Array, ""]:
        """-(1/N) log likelihood + (λ/2) Σ_i P_i (θ_i - m_i)²."""
        return negative_log_likelihood(network, batch) + 0.5 * self.strength * quadratic(network, *held)


def weighted_mean(
    old_weight: Float[Array, "*s"], old: Float[Array, "*s"], new_weight: Float[Array, "*s"], new: Float[Array, "*s"]
) -> Float[Array, "*s"]:
    """Of two places, weighted; the newer where neither has weight."""
    total = old_weight + new_weight
    return jnp.where(total > 0, (old_weight * old + new_weight * new) / jnp.where(total > 0, total, 1.0), new)
