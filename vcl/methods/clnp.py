"""Continual learning via neural pruning (Golkar et al., 2019).

A task is learnt with a penalty that leaves some units unused,

    -(1/N) Σ_n log p(y_n | x_n, θ) + λ Σ_u Σ_i |θ_ui| / d,

over the d incoming weights, and the bias, of each unit u that is free. (The paper's L1 penalty, divided by d so that
one λ can serve layers of all widths; it was not compared with the undivided one in full.) The activity of
a unit is its mean |activation| on examples held out from the task's data. Layer by layer, the threshold up to which
units are cut off is raised until the accuracy on these examples has fallen by the layer's share of the margin. The
units that remain are active, from now on and for all tasks:

    into an active unit    from active units: frozen; from all others: zero and frozen
    into a free unit       drawn afresh; the next tasks learn it, and may read active units as well

so nothing that a task uses ever changes. After the cut, the task's new units are trained on among themselves without
the penalty, to make up for what the cut and the penalty took (not in the paper; 0 `recovery` leaves it out). When
a layer has no free units left, a task learns the other layers and its output layer, on the features there are.

Each task has an output layer of its own, in the domain scenario too: the method is told the task at test time.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from vcl.core import Fit, StreamSpec, Task
from vcl.errors import VclError
from vcl.methods.point import PointLearner, check_not_negative, recipes
from vcl.networks import MLP, Dense, cross_entropy, logits, pixels, random, random_like, replace_head, select_head
from vcl.training import Adam, Batch, Data, masked_mean, shuffle

CHOSEN = {"learning_rate": 0.002, "schedule": "cosine"}

Units = tuple[Bool[Array, "_"], ...]
"""A set of units: which ones of each hidden layer."""


class CLNPState(eqx.Module):
    network: MLP
    """With a head for every task."""
    active: Units


class Masks(eqx.Module):
    """What a fit may change and use."""

    free: Units
    """Units whose parameters learn."""
    used: Units
    """Units that pass on anything at all."""
    strength: Float[Array, ""]


@dataclass(frozen=True)
class CLNP(PointLearner):
    """Continual learning via neural pruning: each task freezes the units that it needs, the others stay free."""

    strength: Annotated[float, "λ, the weight of the L1 penalty that leaves units unused"] = 1.0
    margin: Annotated[float, "accuracy (between 0 and 1) given up to cut off units, before the recovery"] = 0.1
    held_out: Annotated[float, "part of each task's examples on which units are judged"] = 0.05
    recovery: Annotated[int, "passes over the data after the cut, without the penalty (0: none)"] = 5

    told_the_task: ClassVar[bool] = True
    recipes: ClassVar[dict[str, dict[str, dict[str, Any]]]] = recipes(
        split={**CHOSEN, "strength": 0.1, "margin": 0.002, "epochs": 5, "recovery": 5},
        permuted={**CHOSEN, "strength": 1.5, "margin": 0.1, "epochs": 4, "recovery": 6},
    )

    def __post_init__(self) -> None:
        PointLearner.__post_init__(self)
        check_not_negative(self, "strength", "margin", "recovery")
        if not 0 < self.held_out < 1:
            raise VclError(f"--held-out must be between 0 and 1, but it is {self.held_out}.")

    def init(self, key: Key[Array, ""], spec: StreamSpec) -> CLNPState:
        if spec.scenario == "class":
            raise VclError(
                "CLNP is undefined in the class scenario: each task has an output layer that knows its own classes "
                "only, and nothing tells which one to ask. Use --scenario task or domain, where the task is told."
            )
        network = random(key, self.hidden, replace(spec, heads=tuple(range(spec.num_tasks))))
        return CLNPState(network, tuple(jnp.zeros(width, bool) for width in self.hidden))

    def observe(self, key: Key[Array, ""], state: CLNPState, task: Task, data: Data, fit: Fit) -> CLNPState:
        data, held = set_aside(jax.random.fold_in(key, 1), data, self.held_out)
        step = Adam(self.loss, self.learning_rate, self.schedule)
        free = tuple(~a for a in state.active)
        everything = tuple(jnp.ones_like(a) for a in state.active)
        network = fit(
            key,
            "train",
            step,
            select_head(state.network, task.index),
            Masks(free, everything, jnp.float32(self.strength)),
            data,
            epochs=self.epochs,
            batch_size=self.batch_size,
        )
        active = cut(network, state.active, held, self.margin)
        if self.recovery:
            network = fit(
                jax.random.fold_in(key, 2),
                "recover",
                step,
                network,
                Masks(free, active, jnp.float32(0.0)),
                data,
                epochs=self.recovery,
                batch_size=self.batch_size,
            )
        network = release(jax.random.fold_in(key, 3), network, active)
        return CLNPState(replace_head(state.network, task.index, network), active)

    def readout(self, key: Key[Array, ""], state: CLNPState, task: Task, fit: Fit) -> MLP:
        return select_head(state.network, task.index)

    def loss(self, key: Key[Array, ""], network: MLP, masks: Masks, batch: Batch) -> Float[Array, ""]:
        """-(1/N) log likelihood + λ Σ_u Σ_i |θ_ui| / d, neither of which has a gradient at what is frozen."""
        h = pixels(batch.inputs)
        penalty = jnp.sum(mean_absolute(network.head))
        for layer, free, used in zip(network.body, masks.free, masks.used, strict=True):
            a = h @ layer.weight + layer.bias
            # Free units have no weights into frozen ones: stopping at those loses no gradient of what is free.
            h = jnp.where(used, jax.nn.relu(jnp.where(free, a, jax.lax.stop_gradient(a))), 0.0)
            penalty += jnp.sum(free * mean_absolute(layer))
        outputs = h @ network.head.weight + network.head.bias
        return masked_mean(cross_entropy(outputs, batch.labels), batch.mask) + masks.strength * penalty


def mean_absolute(layer: Dense) -> Float[Array, "o"]:
    """Σ_i |θ_ui| / d for each unit u."""
    return (jnp.sum(jnp.abs(layer.weight), axis=0) + jnp.abs(layer.bias)) / layer.weight.shape[0]


@functools.partial(jax.jit, static_argnames="fraction")
def set_aside(key: Key[Array, ""], data: Data, fraction: float) -> tuple[Data, Data]:
    """The data without a random part of it, and that part (of a single example, both are it)."""
    count = jnp.minimum(jnp.ceil(fraction * data.size).astype(jnp.int32), data.size - 1)
    order = shuffle(key, data)
    rest = jnp.roll(order, -count)
    held = order[: int(fraction * data.capacity) + 1]
    return (
        Data(data.inputs[rest], data.labels[rest], data.size - count),
        Data(data.inputs[held], data.labels[held], jnp.maximum(count, 1)),
    )


@functools.partial(jax.jit, static_argnames="margin")
def cut(network: MLP, active: Units, held: Data, margin: float) -> Units:
    """The units to keep: the active ones, and the free ones whose activity is above their layer's threshold."""
    real = jnp.arange(held.capacity) < held.size

    def accuracy(layers: tuple[Dense, ...], h: Float[Array, "n _"]) -> Float[Array, ""]:
        """What `layers` and the head make of the activations before them."""
        right = jnp.argmax(logits(MLP(layers, network.head), h), axis=1) == held.labels
        return jnp.sum(right & real) / held.size

    def still_enough(
        layers: tuple[Dense, ...],
        h: Float[Array, "n units"],
        old: Bool[Array, "units"],
        activity: Float[Array, "units"],
        goal: Float[Array, ""],
        threshold: Float[Array, ""],
    ) -> Bool[Array, ""]:
        return accuracy(layers, h * (old | (activity > threshold))) >= goal

    h = pixels(held.inputs)
    goal = accuracy(network.body, h)
    kept: list[Bool[Array, "_"]] = []
    for number, (layer, old) in enumerate(zip(network.body, active, strict=True), start=1):
        h = jax.nn.relu(h @ layer.weight + layer.bias)
        goal -= margin / len(network.body)
        activity = jnp.where(old, jnp.inf, jnp.sum(h * real[:, None], axis=0) / held.size)

        enough = functools.partial(still_enough, network.body[number:], h, old, activity, goal)
        kept.append(old | (activity > highest(enough, activity)))
        h = h * kept[-1]
    return tuple(kept)


def highest(enough: Callable[[Float[Array, ""]], Bool[Array, ""]], values: Float[Array, "n"]) -> Float[Array, ""]:
    """The highest of `values` that is `enough` when all lower ones are and no higher one is, by bisection.

    -1, under which nothing lies, counts as enough. Otherwise, one that is enough and whose successor is not.
    """
    rising = jnp.concatenate([jnp.array([-1.0]), jnp.sort(values)])

    def halve(bounds: tuple[Int[Array, ""], Int[Array, ""]]) -> tuple[Int[Array, ""], Int[Array, ""]]:
        low, high = bounds
        middle = (low + high) // 2
        good = enough(rising[middle])
        return jnp.where(good, middle, low), jnp.where(good, high, middle)

    bounds = (jnp.int32(0), jnp.int32(len(rising)))
    return rising[jax.lax.while_loop(lambda b: b[1] - b[0] > 1, halve, bounds)[0]]


@jax.jit
def release(key: Key[Array, ""], network: MLP, active: Units) -> MLP:
    """Draw the units that are not active afresh, and cut them off from the active ones and from the head."""
    fresh = random_like(key, network)
    readable = jnp.ones(network.body[0].weight.shape[0], bool)
    body = []
    for layer, drawn, kept in zip(network.body, fresh.body, active, strict=True):
        weight = jnp.where(kept, jnp.where(readable[:, None], layer.weight, 0.0), drawn.weight)
        body.append(Dense(weight, jnp.where(kept, layer.bias, drawn.bias)))
        readable = kept
    return MLP(tuple(body), Dense(jnp.where(readable[:, None], network.head.weight, 0.0), network.head.bias))
