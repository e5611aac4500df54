"""Gradient episodic memory (Lopez-Paz & Ranzato, 2017).

The loss on the memory of no other task may rise. With the gradient g of a minibatch and the gradients M, a row for
each other task, a step goes along the vector nearest to g that agrees with every row:

    min_z ½ ‖z - g‖²  subject to  M z ≥ 0.

Its dual has as many unknowns as there are tasks: min_v ½ vᵀ M Mᵀ v + (M g)ᵀ v subject to v ≥ 0, and z = g + Mᵀ v.
Where g disagrees with a row, v ≥ margin is asked for instead of v ≥ 0: steps that also improve the other tasks.
"""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key, PyTree, Shaped

from vcl.methods.episodic import Episode, EpisodicLearner
from vcl.methods.point import check_not_negative, negative_log_likelihood, recipes
from vcl.networks import MLP, select_head
from vcl.training import Batch

ROUNDS = 100
"""Most rounds of the dual problem's solver; a few are usual."""


@dataclass(frozen=True)
class GEM(EpisodicLearner):
    """Gradient episodic memory: steps that raise the loss on no other task's memory."""

    margin: Annotated[float, "least weight of each other task's gradient where any of them disagrees"] = 0.5
    reference: Annotated[int, "examples drawn from each memory for each step (0: all of it, as published)"] = 0

    recipes: ClassVar[dict[str, dict[str, dict[str, Any]]]] = recipes(
        split={"learning_rate": 0.1, "epochs": 3, "batch_size": 64},
        permuted={"learning_rate": 0.03, "schedule": "plateau", "epochs": 1, "batch_size": 10, "reference": 16},
    )

    def __post_init__(self) -> None:
        EpisodicLearner.__post_init__(self)
        check_not_negative(self, "margin", "reference")

    def correct(self, key: Key[Array, ""], network: MLP, gradient: MLP, episode: Episode) -> MLP:
        return project(gradient, memory_gradients(key, network, episode, self.reference), self.margin)


def memory_gradients(key: Key[Array, ""], network: MLP, episode: Episode, reference: int) -> MLP:
    """Each other task's gradient, stacked; zero where nothing is kept of a task."""

    def one(
        kept: tuple[Key[Array, ""], Shaped[Array, "size d"], Int[Array, "size"], Int[Array, ""], Int[Array, ""]],
    ) -> MLP:
        key, inputs, labels, filled, head = kept
        mask = jnp.arange(labels.shape[0]) < filled
        if reference:
            rows = jax.random.randint(key, (reference,), 0, jnp.maximum(filled, 1))
            inputs, labels, mask = inputs[rows], labels[rows], mask[rows]
        batch = Batch(inputs, labels, mask, filled)
        # A real branch, not a mask: tasks that have not come yet cost nothing.
        return jax.lax.cond(
            filled > 0,
            jax.grad(lambda network: negative_log_likelihood(select_head(network, head), batch)),
            lambda network: jax.tree.map(jnp.zeros_like, network),
            network,
        )

    others = episode.others
    keys = jax.random.split(key, others.filled.shape[0])
    return jax.lax.map(one, (keys, others.inputs, others.labels, others.filled, episode.heads))


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

    A sweep of coordinate descent finds which coordinates stay at their bound, Newton's method solves for the others,
    and so on until nothing moves. Newton's step is taken only where it is better, so that memories whose gradients
    depend on each other do no harm. Rows are scaled to unit length: the size of no task's gradient matters.
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
