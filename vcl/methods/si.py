"""Synaptic intelligence (Zenke, Poole & Ganguli, 2017).

A weight matters as much as it lowered the loss on its way. While task t is learnt, with g the gradient of its own
loss (without the penalty) and Δθ the change that a step makes,

    ω_i ← ω_i - g_i Δθ_i    in every step,
    Ω_i ← Ω_i + max(ω_i, 0) / ((θ_i - θ*_i)² + ξ)    after the task,

where θ* are the weights before it. The next task minimises -(1/N) Σ_n log p(y_n | x_n, θ) + c Σ_i Ω_i (θ_i - θ*_i)²
with θ* the weights where it begins.
"""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, PyTree

from vcl.core import Fit, StreamSpec, Task
from vcl.methods.penalty import held_step, quadratic
from vcl.methods.point import (
    PointLearner,
    check_not_negative,
    check_positive,
    negative_log_likelihood,
    recipes,
)
from vcl.networks import MLP, random, replace_head, select_head
from vcl.training import OPTIMIZERS, Batch, Data, learning_rate


class SIState(eqx.Module):
    network: MLP
    """θ, which is also θ* of the next task."""
    importance: MLP
    """Ω: how much each weight lowered the losses so far, for the way it went."""


@dataclass(frozen=True)
class SI(PointLearner):
    """Synaptic intelligence: weights are held by how much they lowered the loss on their way."""

    strength: Annotated[float, "c, the weight of the penalty (0: fine-tuning)"] = 1.0
    xi: Annotated[float, "ξ, added to a weight's squared way, so that one which stood still is not held"] = 0.1

    recipes: ClassVar[dict[str, dict[str, dict[str, Any]]]] = recipes(
        split={"strength": 10.0, "xi": 0.01},
        permuted={
            "epochs": 1,
            "batch_size": 10,
            "learning_rate": 0.002,
            "schedule": "cosine",
            "strength": 0.1,
            "xi": 0.1,
        },
    )

    def __post_init__(self) -> None:
        PointLearner.__post_init__(self)
        check_not_negative(self, "strength")
        check_positive(self, "xi")

    def init(self, key: Key[Array, ""], spec: StreamSpec) -> SIState:
        network = random(key, self.hidden, spec)
        return SIState(network, jax.tree.map(jnp.zeros_like, network))

    def observe(self, key: Key[Array, ""], state: SIState, task: Task, data: Data, fit: Fit) -> SIState:
        start, importance = select_head((state.network, state.importance), task.head)
        network, path = fit(
            key,
            "train",
            PathIntegral(self),
            start,
            (importance, start),
            data,
            epochs=self.epochs,
            batch_size=self.batch_size,
        )
        importance = jax.tree.map(
            lambda o, w, end, begin: o + jnp.maximum(w, 0.0) / ((end - begin) ** 2 + self.xi),
            importance,
            path,
            network,
            start,
        )
        return SIState(
            replace_head(state.network, task.head, network), replace_head(state.importance, task.head, importance)
        )

    def readout(self, key: Key[Array, ""], state: SIState, task: Task, fit: Fit) -> MLP:
        return select_head(state.network, task.head)


@dataclass(frozen=True)
class PathIntegral:
    """Adam under the penalty, with ω carried along. `params` are the weights and ω."""

    learner: SI

    def init(self, network: MLP) -> tuple[MLP, PyTree, MLP]:
        return network, OPTIMIZERS["adam"].init(network), jax.tree.map(jnp.zeros_like, network)

    def params(self, carry: tuple[MLP, PyTree, MLP]) -> tuple[MLP, MLP]:
        network, _, path = carry
        return network, path

    def __call__(
        self,
        key: Key[Array, ""],
        carry: tuple[MLP, PyTree, MLP],
        held: tuple[MLP, MLP],
        batch: Batch,
        progress: Float[Array, ""],
    ) -> tuple[tuple[MLP, PyTree, MLP], Float[Array, ""]]:
        network, moments, path = carry
        loss, gradient = jax.value_and_grad(negative_log_likelihood)(network, batch)
        strength = self.learner.strength
        rate = self.learner.learning_rate * learning_rate(self.learner.schedule, progress)
        moved, moments = held_step(network, moments, gradient, strength, held, rate)
        path = jax.tree.map(lambda w, g, new, old: w - g * (new - old), path, gradient, moved, network)
        return (moved, moments, path), loss + strength * quadratic(network, *held)
