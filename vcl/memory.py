"""Memories and coresets: a few examples of each task, kept."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key, Shaped

from vcl.core import StreamSpec, check_index
from vcl.errors import VclError
from vcl.nets import pixels
from vcl.training import Data, shuffle


class Memory(eqx.Module):
    """Examples kept, for each task `filled` of them: its first rows."""

    inputs: Shaped[Array, "tasks size d"]
    labels: Int[Array, "tasks size"]
    filled: Int[Array, "tasks"]


@functools.partial(jax.jit, static_argnames=("spec", "size"))
def empty(spec: StreamSpec, size: int) -> Memory:
    """Room for `size` examples of each task."""
    shape = (spec.num_tasks, size)
    return Memory(
        jnp.zeros((*shape, spec.input_size), spec.input_dtype),
        jnp.zeros(shape, jnp.int32),
        jnp.zeros(spec.num_tasks, jnp.int32),
    )


def check_size(size: int, spec: StreamSpec) -> None:
    """Refuse a coreset that would leave nothing to learn from."""
    if size >= spec.capacity:
        raise VclError(
            f"A coreset of {size} examples cannot be taken from tasks of at most {spec.capacity}. "
            "Choose a smaller --coreset."
        )


def room(memory: Memory, task: int) -> int:
    """How many more examples of a task can be kept."""
    check_index("task", task, len(memory.filled))
    return memory.labels.shape[1] - int(memory.filled[task])


def add(memory: Memory, task: int, data: Data, rows: Int[Array, "n"]) -> Memory:
    """Keep copies of these rows of `data`, behind those that there are of this task."""
    check_index("task", task, len(memory.filled))
    place = memory.filled[task] + jnp.arange(rows.shape[0])
    return Memory(
        memory.inputs.at[task, place].set(data.inputs[rows]),
        memory.labels.at[task, place].set(data.labels[rows]),
        memory.filled.at[task].add(rows.shape[0]),
    )


def of_task(memory: Memory, task: int) -> Data:
    """What is kept of one task."""
    check_index("task", task, len(memory.filled))
    return Data(memory.inputs[task], memory.labels[task], memory.filled[task])


def for_readout(memory: Memory, num_heads: int, task: int) -> Data:
    """The part of a coreset that a task's read-out may learn from: its own, or all where there is one head."""
    return of_task(memory, task) if num_heads > 1 else of_all_tasks(memory)


@jax.jit
def of_all_tasks(memory: Memory) -> Data:
    """What is kept, task after task, the filling behind it."""
    tasks, size = memory.labels.shape
    unused = (jnp.arange(size) >= memory.filled[:, None]).reshape(-1)
    order = jnp.argsort(unused, stable=True)
    inputs = memory.inputs.reshape(tasks * size, memory.inputs.shape[-1])[order]
    return Data(inputs, memory.labels.reshape(-1)[order], memory.filled.sum())


def without(memory: Memory, task: int) -> Memory:
    """What is kept of the other tasks."""
    check_index("task", task, len(memory.filled))
    return Memory(memory.inputs, memory.labels, memory.filled.at[task].set(0))


def draw(
    key: Key[Array, ""], memory: Memory, size: int
) -> tuple[Shaped[Array, "n d"], Int[Array, "n"], Int[Array, "n"]]:
    """Examples drawn from all that is kept, with replacement: inputs, labels and tasks. There must be some."""
    ends = jnp.cumsum(memory.filled)
    number = jax.random.randint(key, (size,), 0, jnp.maximum(ends[-1], 1))
    # Tasks are few: to compare with all of them is faster than to bisect.
    task = jnp.searchsorted(ends, number, side="right", method="compare_all")
    row = number - (ends - memory.filled)[task]
    return memory.inputs[task, row], memory.labels[task, row], task


def random(key: Key[Array, ""], data: Data, size: int) -> Int[Array, "size"]:
    """Rows chosen at random, without replacement."""
    return shuffle(key, data)[:size]


def k_center(key: Key[Array, ""], data: Data, size: int) -> Int[Array, "size"]:
    """Greedy k-center (Gonzalez, 1985): each row is the farthest from those before it; the first is random."""
    real = jnp.arange(data.capacity) < data.size

    def choose(i: Int[Array, ""], loop: tuple[Array, Array]) -> tuple[Array, Array]:
        chosen, distance = loop
        distance = jnp.minimum(distance, squared_distance(data.inputs, chosen[i - 1])).at[chosen[i - 1]].set(-1.0)
        return chosen.at[i].set(jnp.argmax(jnp.where(real, distance, -2.0)).astype(jnp.int32)), distance

    first = random(key, data, 1).astype(jnp.int32)
    start = (jnp.zeros(size, jnp.int32).at[0].set(first[0]), jnp.full(data.capacity, jnp.inf))
    return jax.lax.fori_loop(1, size, choose, start)[0]


def squared_distance(inputs: Shaped[Array, "n d"], row: Int[Array, ""]) -> Float[Array, "n"]:
    return jnp.sum((pixels(inputs) - pixels(inputs[row][None])) ** 2, axis=1)


SELECTIONS = {"random": random, "k-center": k_center}


def set_aside(key: Key[Array, ""], coreset: Memory, task: int, data: Data, selection: str) -> tuple[Memory, Data]:
    """Move a few examples out of the data, into the coreset, until it holds its share for this task."""
    wanted = min(room(coreset, task), int(data.size) - 1)
    if wanted <= 0:
        return coreset, data
    rows = SELECTIONS[selection](key, data, wanted)
    return add(coreset, task, data, rows), remove(data, rows)


def remove(data: Data, rows: Int[Array, "size"]) -> Data:
    """The data without `rows`, the others in their order."""
    gone = jnp.zeros(data.capacity, bool).at[rows].set(True)
    order = jnp.argsort(gone, stable=True)
    # Rows that were removed come to stand last, behind the filling.
    return Data(data.inputs[order], data.labels[order], data.size - rows.shape[0])


@functools.partial(jax.jit, static_argnames="num_groups")
def herding(
    features: Float[Array, "n f"], groups: Int[Array, "n"], num_groups: int, most: int | Int[Array, ""]
) -> Int[Array, "n"]:
    """The place of each row in its group's herding order (Welling, 2009): 0, 1, … `most` - 1, or n if it has none.

    Place k goes to the row that brings the mean of the first k + 1 nearest to the mean of the whole group.
    Rows whose group is not among 0 … num_groups - 1 are left out.
    """
    n = features.shape[0]
    member = groups == jnp.arange(num_groups)[:, None]
    counts = jnp.sum(member, axis=1)
    means = member @ features / jnp.maximum(counts, 1)[:, None]
    squares = jnp.sum(features**2, axis=1)

    def choose(k: Int[Array, ""], loop: tuple[Array, Array]) -> tuple[Array, Array]:
        places, total = loop
        # A row like this would meet the mean. Of ‖row - wanted‖², what a group's rows have in common is left out.
        wanted = (k + 1) * means - total
        distance = jnp.where(member & (places == n), squares - 2.0 * (wanted @ features.T), jnp.inf)
        chosen = jnp.argmin(distance, axis=1)
        left = k < counts
        total = total + jnp.where(left[:, None], features[chosen], 0.0)
        return places.at[jnp.where(left, chosen, n)].set(k, mode="drop"), total

    start = (jnp.full(n, n, jnp.int32), jnp.zeros_like(means))
    return jax.lax.fori_loop(0, jnp.minimum(most, jnp.max(counts)), choose, start)[0]
