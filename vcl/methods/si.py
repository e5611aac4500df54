"""Synaptic intelligence (Zenke, Poole & Ganguli, 2017).

The importance of a weight is its contribution to the decrease of the loss along the training path. While task t is
learnt, with g the gradient of its own loss (without the penalty) and Δθ the update of a step,

    ω_i ← ω_i - g_i Δθ_i    in every step,
    Ω_i ← Ω_i + max(ω_i, 0) / ((θ_i - θ*_i)² + ξ)    after the task,

where θ* are the weights before it. The next task minimises -(1/N) Σ_n log p(y_n | x_n, θ) + c Σ_i Ω_i (θ_i - θ*_i)²
with θ* the weights where it begins. Adam starts afresh with each task, as in the published runs on split MNIST;
those on permuted MNIST keep its state.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, PyTree

from vcl.core import Fit, StreamSpec, Task
from vcl.methods.base.penalty import held_step, quadratic
from vcl.methods.base.point import PointLearner, negative_log_likelihood
from vcl.methods.base.settings import Recipes, check_not_negative, check_positive, family_settings
from vcl.nets import Weights, random, replace_head, select_head
from vcl.training import Batch, Data, first_moments, learning_rate


class SIState(eqx.Module):
    network: Weights
    """θ, which is also θ* of the next task."""
    importance: Weights
    """Ω: each weight's contribution to the losses so far, relative to its squared change."""


@dataclass(frozen=True)
class SI(PointLearner):
    """Synaptic intelligence: a quadratic penalty by each weight's contribution to lowering the loss.

    Examples
    --------
    >>> SI(strength=0.1).xi
    0.1
    """

    strength: Annotated[float, "c, the weight of the penalty (0: fine-tuning)"] = 1.0
    xi: Annotated[float, "ξ, damping, added to a weight's squared change"] = 0.1

    recipes: ClassVar[Recipes] = {
        "fast": family_settings(
            split={"strength": 10.0, "xi": 0.01},
            permuted={
                "epochs": 1,
                "batch_size": 10,
                "learning_rate": 0.002,
                "schedule": "cosine",
                "strength": 0.1,
                "xi": 0.1,
            },
            split_mnist={"strength": 0.89, "learning_rate": 0.0096, "schedule": "cosine"},
        ),
        "published": family_settings(
            split={"strength": 1.0, "xi": 0.001, "epochs": 10, "batch_size": 64, "learning_rate": 0.001},
            permuted={"strength": 0.1, "xi": 0.1, "epochs": 20, "batch_size": 256, "learning_rate": 0.001},
        ),
    }

    def __post_init__(self) -> None:
        PointLearner.__post_init__(self)
        check_not_negative(self, "strength")
        check_positive(self, "xi")

    def init(self, key: Key[Array, ""], spec: StreamSpec) -> SIState:
        network = random(key, self.architecture, spec)
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

    def readout(self, key: Key[Array, ""], state: SIState, task: Task, fit: Fit) -> Weights:
        return select_head(state.network, task.head)


@dataclass(frozen=True)
class PathIntegral:
    """Adam on the penalised loss, accumulating ω. `params` are the weights and ω."""

    learner: SI

    def init(self, network: Weights) -> tuple[Weights, PyTree, Weights]:
        return network, first_moments("adam", network), jax.tree.map(jnp.zeros_like, network)

    def params(self, carry: tuple[Weights, PyTree, Weights]) -> tuple[Weights, Weights]:
        network, _, path = carry
        return network, path

    def __call__(
        self,
        key: Key[Array, ""],
        carry: tuple[Weights, PyTree, Weights],
        held: tuple[Weights, Weights],
        batch: Batch,
        progress: Float[Array, ""],
    ) -> tuple[tuple[Weights, PyTree, Weights], Float[Array, ""]]:
        network, moments, path = carry
        loss, gradient = jax.value_and_grad(negative_log_likelihood)(network, batch)
        strength = self.learner.strength
        rate = self.learner.learning_rate * learning_rate(self.learner.schedule, progress)
        moved, moments = held_step(network, moments, gradient, strength, held, rate)
        path = jax.tree.map(lambda w, g, new, old: w - g * (new - old), path, gradient, moved, network)
        return (moved, moments, path), loss + strength * quadratic(network, *held)
