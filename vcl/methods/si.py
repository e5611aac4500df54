"""Synaptic intelligence (Zenke, Poole & Ganguli, 2017).

The importance of a weight is its contribution to the decrease of the loss along the training path. While task t is
learnt, with g the gradient of its own loss (without the penalty) and Δθ the update of a step,

    ω_i ← ω_i - g_i Δθ_i    in every step,
    Ω_i ← Ω_i + max(ω_i, 0) / ((θ_i - θ*_i)² + ξ)    after the task,

where θ* are the weights before it. The next task minimises -(1/N) Σ_n log p(y_n | x_n, θ) + c Σ_i Ω_i (θ_i - θ*_i)²
with θ* the weights where it begins. The published runs start Adam afresh with each task on split MNIST, and keep its
moments on permuted MNIST.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
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
    moments: PyTree = None
    """Adam's moments, where they are kept across tasks."""


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
    moments: Annotated[Literal["reset", "keep"], "Adam's moments at the start of a task"] = "reset"

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
            permuted_mnist={"strength": 0.14, "learning_rate": 0.0023},
        ),
        "published": family_settings(
            split={"strength": 1.0, "xi": 0.001, "epochs": 10, "batch_size": 64, "learning_rate": 0.001},
            permuted={
                "strength": 0.1,
                "xi": 0.1,
                "epochs": 20,
                "batch_size": 256,
                "learning_rate": 0.001,
                "moments": "keep",
            },
        ),
    }

    def __post_init__(self) -> None:
        PointLearner.__post_init__(self)
        check_not_negative(self, "strength")
        check_positive(self, "xi")

    def init(self, key: Key[Array, ""], spec: StreamSpec) -> SIState:
        network = random(key, self.architecture, spec)
        moments = first_moments("adam", network) if self.moments == "keep" else None
        return SIState(network, jax.tree.map(jnp.zeros_like, network), moments)

    def observe(self, key: Key[Array, ""], state: SIState, task: Task, data: Data, fit: Fit) -> SIState:
        start, importance = select_head((state.network, state.importance), task.head)
        moments = first_moments("adam", start) if state.moments is None else head_moments(state.moments, task.head)
        network, path, moments = fit(
            key,
            "train",
            PathIntegral(self),
            (start, moments),
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
            replace_head(state.network, task.head, network),
            replace_head(state.importance, task.head, importance),
            None if state.moments is None else with_head_moments(state.moments, task.head, moments),
        )

    def readout(self, key: Key[Array, ""], state: SIState, task: Task, fit: Fit) -> Weights:
        return select_head(state.network, task.head)


def head_moments(moments: optax.ScaleByAdamState, head: int) -> optax.ScaleByAdamState:
    """Adam's moments of the weights in use for a task."""
    return moments._replace(mu=select_head(moments.mu, head), nu=select_head(moments.nu, head))


def with_head_moments(
    moments: optax.ScaleByAdamState, head: int, new: optax.ScaleByAdamState
) -> optax.ScaleByAdamState:
    """Adam's moments of all weights, after those in use for a task have become `new`."""
    return new._replace(mu=replace_head(moments.mu, head, new.mu), nu=replace_head(moments.nu, head, new.nu))


@dataclass(frozen=True)
class PathIntegral:
    """Adam on the penalised loss, accumulating ω. It starts with weights and Adam's moments."""

    learner: SI

    def init(self, start: tuple[Weights, PyTree]) -> tuple[Weights, PyTree, Weights]:
        network, moments = start
        return network, moments, jax.tree.map(jnp.zeros_like, network)

    def params(self, carry: tuple[Weights, PyTree, Weights]) -> tuple[Weights, Weights, PyTree]:
        """The weights, ω and Adam's moments."""
        network, moments, path = carry
        return network, path, moments

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
