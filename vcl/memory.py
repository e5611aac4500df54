"""Coresets: a few examples of each task, set aside."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key, Shaped

from vcl.networks import pixels
from vcl.training import Data, shuffle


def random(key: Key[Array, ""], data: Data, size: int) -> Int[Array, "size"]:
    """Rows chosen at random, without replacement."""
    return shuffle(key, data)[:size]


def k_center(key: Key[Array, ""], data: Data, size: int) -> Int[Array, "size"]:
    """Greedy k-center (Gonzalez, 1985): each row is the farthest from those before it; the first is random."""
    real = jnp.arange(data.capacity) < data.size

    def choose(i: Int[Array, ""], loop: tuple[Array, Array]) -> tuple[Array, Array]:
        chosen, distance = loop
        distance = jnp.minimum(distance, squared_distance(data.inputs, chosen[i - 1]))
        return chosen.at[i].set(jnp.argmax(jnp.where(real, distance, -1.0)).astype(jnp.int32)), distance

    first = random(key, data, 1).astype(jnp.int32)
    start = (jnp.zeros(size, jnp.int32).at[0].set(first[0]), jnp.full(data.capacity, jnp.inf))
    return jax.lax.fori_loop(1, size, choose, start)[0]


def squared_distance(inputs: Shaped[Array, "n d"], row: Int[Array, ""]) -> Float[Array, "n"]:
    return jnp.sum((pixels(inputs) - pixels(inputs[row][None])) ** 2, axis=1)


SELECTIONS = {"random": random, "k-center": k_center}


def remove(data: Data, rows: Int[Array, "size"]) -> Data:
    """The data without `rows`, the others in their order."""
    gone = jnp.zeros(data.capacity, bool).at[rows].set(True)
    order = jnp.argsort(gone, stable=True)
    # Rows that were removed come to stand last, behind the filling.
    return Data(data.inputs[order], data.labels[order], data.size - rows.shape[0])
