"""Riemannian walk (Chaudhry et al., 2018), without examples of earlier tasks.

Two measures of a weight's importance are combined, with g the gradient of the task's own loss, without the penalty:

- the Fisher information, a moving average F_i ← α g_i² + (1 - α) F_i over the steps of all tasks (EWC++); as
  published, g is the gradient of a minibatch, so that F depends on the batch size;
- the score, the decrease of the loss per distance in the Riemannian manifold of distributions: over every Δ steps,
  with the decrease ω_i = -Σ g_i Δθ_i and the change from θ' to θ,
  s_i ← s_i + max(ω_i, 0) / (½ F_i (θ_i - θ'_i)² + ε).

After a task s̄ ← ½ (s̄ + s), and F and s̄ are scaled to [0, 1]. The next one minimises
-(1/N) Σ_n log p(y_n | x_n, θ) + λ Σ_i (F_i + s̄_i) (θ_i - θ*_i)², where θ* are the weights where it begins.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key, PyTree

from vcl.core import Fit, StreamSpec, Task
from vcl.errors import VclError
from vcl.methods.base.penalty import held_step, quadratic
from vcl.methods.base.point import PointLearner, negative_log_likelihood
from vcl.methods.base.settings import Recipes, check_not_negative, check_positive, family_settings
from vcl.nets import Weights, random, replace_head, select_head
from vcl.training import Batch, Data, first_moments, learning_rate


class RWalkState(eqx.Module):
    network: Weights
    """θ, which is also θ* of the next task."""
    fisher: Weights
    """F."""
    scores: Weights
    """s̄."""


class Walk(eqx.Module):
    """What is accumulated along the training path."""

    fisher: Weights
    """F."""
    scores: Weights
    """s of the intervals that are complete."""
    gains: Weights
    """ω since the last of them."""
    corner: Weights
    """θ', the weights then."""
    steps: Int[Array, ""]
    """Since the task began."""


@dataclass(frozen=True)
class RWalk(PointLearner):
    """Riemannian walk: a quadratic penalty by Fisher information and by path-based scores.

    Examples
    --------
    >>> RWalk().interval
    10
    """

    strength: Annotated[float, "λ, the weight of the penalty (0: fine-tuning)"] = 1.0
    fisher_rate: Annotated[float, "α, the newest batch's share in the moving average of the Fisher"] = 0.9
    interval: Annotated[int, "Δ, number of steps between updates of the scores"] = 10
    epsilon: Annotated[float, "ε, damping of the scores"] = 0.001

    recipes: ClassVar[Recipes] = {
        "fast": family_settings(
            split={},
            permuted={
                "epochs": 1,
                "batch_size": 10,
                "learning_rate": 0.002,
                "schedule": "cosine",
                "strength": 0.3,
                "fisher_rate": 0.01,
                "epsilon": 0.1,
            },
            split_mnist={"strength": 0.18, "learning_rate": 0.0018},
        ),
        # λ, batch size and one pass of Chaudhry et al. (2019); they use SGD, the original code Adam at this rate.
        "published": family_settings(
            split={"strength": 1.0, "epochs": 1, "batch_size": 10, "learning_rate": 0.001},
            permuted={"strength": 1.0, "epochs": 1, "batch_size": 10, "learning_rate": 0.001},
        ),
    }

    def __post_init__(self) -> None:
        PointLearner.__post_init__(self)
        check_not_negative(self, "strength")
        check_positive(self, "interval", "epsilon")
        if not 0 < self.fisher_rate <= 1:
            raise VclError(f"--fisher-rate must be above 0 and at most 1, but it is {self.fisher_rate}.")

    def init(self, key: Key[Array, ""], spec: StreamSpec) -> RWalkState:
        network = random(key, self.architecture, spec)
        nothing = jax.tree.map(jnp.zeros_like, network)
        return RWalkState(network, nothing, nothing)

    def observe(self, key: Key[Array, ""], state: RWalkState, task: Task, data: Data, fit: Fit) -> RWalkState:
        start, fisher, scores = select_head((state.network, state.fisher, state.scores), task.head)
        importance = jax.tree.map(jnp.add, scaled(fisher), scaled(scores))
        network, walk = fit(
            key,
            "train",
            RiemannianStep(self),
            (start, fisher),
            (importance, start),
            data,
            epochs=self.epochs,
            batch_size=self.batch_size,
        )
        scores = jax.tree.map(lambda old, new: 0.5 * (old + new), scores, settle(walk, network, self.epsilon).scores)
        return RWalkState(
            replace_head(state.network, task.head, network),
            replace_head(state.fisher, task.head, walk.fisher),
            replace_head(state.scores, task.head, scores),
        )

    def readout(self, key: Key[Array, ""], state: RWalkState, task: Task, fit: Fit) -> Weights:
        return select_head(state.network, task.head)


def scaled(tree: Weights) -> Weights:
    """Min-max scaling to [0, 1], over the weights of all layers together."""
    leaves = jax.tree.leaves(tree)
    low = jnp.min(jnp.stack([jnp.min(leaf) for leaf in leaves]))
    span = jnp.max(jnp.stack([jnp.max(leaf) for leaf in leaves])) - low
    return jax.tree.map(lambda a: (a - low) / jnp.where(span > 0, span, 1.0), tree)


def settle(walk: Walk, network: Weights, epsilon: float) -> Walk:
    """End an interval at `network`: add its contribution to the scores."""
    scores = jax.tree.map(
        lambda s, w, f, new, old: s + jnp.maximum(w, 0.0) / (0.5 * f * (new - old) ** 2 + epsilon),
        walk.scores,
        walk.gains,
        walk.fisher,
        network,
        walk.corner,
    )
    return Walk(walk.fisher, scores, jax.tree.map(jnp.zeros_like, walk.gains), network, walk.steps)


@dataclass(frozen=True)
class RiemannianStep:
    """Adam under the penalty, with the walk measured. Starts at weights and F; `params` are weights and walk."""

    learner: RWalk

    def init(self, params: tuple[Weights, Weights]) -> tuple[Weights, PyTree, Walk]:
        network, fisher = params
        nothing = jax.tree.map(jnp.zeros_like, network)
        walk = Walk(fisher, nothing, nothing, network, jnp.int32(0))
        return network, first_moments("adam", network), walk

    def params(self, carry: tuple[Weights, PyTree, Walk]) -> tuple[Weights, Walk]:
        network, _, walk = carry
        return network, walk

    def __call__(
        self,
        key: Key[Array, ""],
        carry: tuple[Weights, PyTree, Walk],
        held: tuple[Weights, Weights],
        batch: Batch,
        progress: Float[Array, ""],
    ) -> tuple[tuple[Weights, PyTree, Walk], Float[Array, ""]]:
        network, moments, walk = carry
        strength, alpha, epsilon = self.learner.strength, self.learner.fisher_rate, self.learner.epsilon
        loss, gradient = jax.value_and_grad(negative_log_likelihood)(network, batch)
        rate = self.learner.learning_rate * learning_rate(self.learner.schedule, progress)
        moved, moments = held_step(network, moments, gradient, strength, held, rate)
        fisher = jax.tree.map(lambda f, g: alpha * g**2 + (1.0 - alpha) * f, walk.fisher, gradient)
        gains = jax.tree.map(lambda w, g, new, old: w - g * (new - old), walk.gains, gradient, moved, network)
        walk = jax.lax.cond(
            (walk.steps + 1) % self.learner.interval == 0,
            lambda now: settle(now, moved, epsilon),
            lambda now: now,
            Walk(fisher, walk.scores, gains, walk.corner, walk.steps + 1),
        )
        return (moved, moments, walk), loss + strength * quadratic(network, *held)
