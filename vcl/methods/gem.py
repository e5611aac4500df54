"""Gradient episodic memory (Lopez-Paz & Ranzato, 2017).

A step must not increase the loss on the memory of any other task. With the gradient g of a minibatch and the
gradients M, a row for each other task, it follows the vector nearest to g that has no negative product with any
row:

    min_z ½ ‖z - g‖²  subject to  M z ≥ 0.

Its dual has as many unknowns as there are tasks: min_v ½ vᵀ M Mᵀ v + (M g)ᵀ v subject to v ≥ 0, and z = g + Mᵀ v.
Where g has a negative product with a row, v ≥ margin is required instead of v ≥ 0, which favours backward transfer.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key, PyTree, Shaped

from vcl.memory import Memory
from vcl.methods.base.episodic import Episode, EpisodicLearner
from vcl.methods.base.point import negative_log_likelihood
from vcl.methods.base.settings import Recipes, check_not_negative, family_settings
from vcl.nets import Weights, select_head
from vcl.training import Batch

ROUNDS = 100
"""Most rounds of the dual problem's solver; a few are usual."""


@dataclass(frozen=True)
class GEM(EpisodicLearner):
    """Gradient episodic memory: steps that do not increase the loss on any other task's memory.

    Examples
    --------
    >>> GEM(memory=100).margin
    0.5
    """

    margin: Annotated[float, "least weight of each other task's gradient in a corrected step"] = 0.5

    recipes: ClassVar[Recipes] = {
        "fast": family_settings(
            split={"learning_rate": 0.1, "epochs": 3, "batch_size": 64},
            permuted={"learning_rate": 0.2, "epochs": 1, "batch_size": 64},
            split_mnist={"learning_rate": 0.43, "schedule": "cosine", "margin": 0.53},
            permuted_mnist={"learning_rate": 0.16, "margin": 0.21},
        ),
        # The paper has 1000 examples a task; these have all of them.
        "published": family_settings(
            split={"learning_rate": 0.1, "epochs": 1, "batch_size": 10, "memory": 256, "margin": 0.5},
            permuted={"learning_rate": 0.1, "epochs": 1, "batch_size": 10, "memory": 256, "margin": 0.5},
        ),
    }

    def __post_init__(self) -> None:
        EpisodicLearner.__post_init__(self)
        check_not_negative(self, "margin")

    def correct(self, key: Key[Array, ""], network: Weights, gradient: Weights, episode: Episode) -> Weights:
        return project(gradient, self.memory_gradients(key, network, episode), self.margin)

    def memory_gradients(self, key: Key[Array, ""], network: Weights, episode: Episode) -> Weights:
        """Each other task's gradient on its whole memory, stacked; zero where the memory is empty."""
        return task_gradients(network, episode.others, episode.heads)


def task_gradients(network: Weights, memory: Memory, heads: Int[Array, "tasks"]) -> Weights:
    """The gradient on each task's memory, at the task's own head."""

    def one(
        kept: tuple[Shaped[Array, "size d"], Int[Array, "size"], Int[Array, ""], Int[Array, ""]],
    ) -> Weights:
        inputs, labels, filled, head = kept
        batch = Batch(inputs, labels, jnp.arange(labels.shape[0]) < filled, filled)
        # A branch, not a mask: tasks still to come cost nothing.
        return jax.lax.cond(
            filled > 0,
            jax.grad(lambda network: negative_log_likelihood(select_head(network, head), batch)),
            lambda network: jax.tree.map(jnp.zeros_like, network),
            network,
        )

    return jax.lax.map(one, (memory.inputs, memory.labels, memory.filled, heads))


def project(gradient: PyTree, others: PyTree, margin: float) -> PyTree:
    """g + Mᵀ v, where M holds the gradients `others` as rows."""
    tasks = jax.tree.leaves(others)[0].shape[0]
    rows = [row.reshape(tasks, -1) for row in jax.tree.leaves(others)]
    agreement = sum(row @ g.reshape(-1) for row, g in zip(rows, jax.tree.leaves(gradient), strict=True))
    v = jax.lax.cond(
        jnp.any(agreement < 0),
        lambda: nearest(sum(row @ row.T for row in rows), agreement, margin),
        lambda: jnp.zeros_like(agreement),
    )
    return jax.tree.map(lambda g, row: g + jnp.tensordot(v, row, 1), gradient, others)


def nearest(
    gram: Float[Array, "tasks tasks"], agreement: Float[Array, "tasks"], margin: float
) -> Float[Array, "tasks"]:
    """The v ≥ margin that minimises ½ vᵀ M Mᵀ v + (M g)ᵀ v.

    Sweeps of coordinate descent, which find the coordinates at their bound, alternate with Newton steps in the rest
    until convergence. A Newton step is taken only if it lowers the objective, so that linearly dependent
    gradients do no harm. Rows are scaled to unit length.
    """
    length = jnp.sqrt(jnp.diag(gram))
    scale = jnp.where(length > 0, length, 1.0)
    eps = float(np.finfo(gram.dtype).eps)
    unit = jnp.eye(len(scale), dtype=gram.dtype)
    cosines = gram / (scale[:, None] * scale) + 10 * eps * unit
    slope = agreement / scale
    lowest = margin * length

    def objective(u: Float[Array, "tasks"]) -> Float[Array, ""]:
        return 0.5 * u @ cosines @ u + slope @ u

    def coordinate(k: Int[Array, ""], u: Float[Array, "tasks"]) -> Float[Array, "tasks"]:
        best = u[k] - (cosines[k] @ u + slope[k]) / cosines[k, k]
        return u.at[k].set(jnp.maximum(best, lowest[k]))

    def newton(u: Float[Array, "tasks"]) -> Float[Array, "tasks"]:
        free = u > lowest
        curvature = jnp.where(free[:, None] & free, cosines, unit)
        step = jnp.linalg.solve(curvature, jnp.where(free, cosines @ u + slope, 0.0))
        # As far as the first coordinate that comes to its bound.
        part = jnp.min(
            jnp.where(step > 0, (u - lowest) / jnp.where(step > 0, step, 1.0), jnp.inf), where=free, initial=1.0
        )
        return jnp.maximum(u - part * step, lowest)

    def improve(loop: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        number, u, _ = loop
        swept = jax.lax.fori_loop(0, len(u), coordinate, u)
        solved = newton(swept)
        new = jnp.where(objective(solved) < objective(swept), solved, swept)
        return number + 1, new, jnp.max(jnp.abs(new - u))

    def moving(loop: tuple[Array, Array, Array]) -> Array:
        number, u, moved = loop
        return (number < ROUNDS) & (moved > 100 * eps * jnp.max(jnp.abs(u)))

    start = (jnp.int32(0), lowest, jnp.asarray(jnp.inf, slope.dtype))
    return jax.lax.while_loop(moving, improve, start)[1] / scale
