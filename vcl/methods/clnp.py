"""Continual learning via neural pruning (Golkar et al., 2019).

A task is learnt with an L1 penalty on the weights and biases of free units, which leaves some units inactive,

    -(1/N) Σ_n log p(y_n | x_n, θ) + λ Σ_i |θ_i|.

The activity of a unit is its mean |activation| on examples held out from the task's data. Layer by layer, the
threshold below which units are pruned is raised until the accuracy on these examples has fallen by the layer's
share of the margin. The remaining units are active, for this and all later tasks:

    into an active unit    from active units: frozen; from all others: zero and frozen
    into a free unit       initialised again; later tasks train it, and it may read active units as well

so nothing that a task depends on ever changes. When a layer has no free units left, a task learns the other layers
and its output layer.

Each task has its own output layer, in the domain scenario too: the method needs the task at test time.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from vcl.core import Fit, StreamSpec, Task
from vcl.errors import VclError
from vcl.methods.base.point import PointLearner
from vcl.methods.base.settings import Recipes, check_not_negative, family_settings
from vcl.nets import (
    Affine,
    Weights,
    cross_entropy,
    forward,
    from_layers,
    is_linear,
    logits,
    pixels,
    point,
    random,
    random_like,
    replace_head,
    select_head,
)
from vcl.training import Adam, Batch, Data, masked_mean, shuffle

CHOSEN = {"learning_rate": 0.002, "schedule": "cosine"}

SEARCHED = family_settings(
    split={**CHOSEN, "strength": 0.00003, "margin": 0.002},
    permuted={**CHOSEN, "strength": 0.003, "margin": 0.03},
    split_mnist={"learning_rate": 0.0028, "strength": 0.000016, "margin": 0.0009},
    permuted_mnist={"learning_rate": 0.006, "strength": 0.00014, "margin": 0.0057},
)

Units = tuple[Bool[Array, "_"], ...]
"""A set of units: which ones of each hidden layer."""


class CLNPState(eqx.Module):
    network: Weights
    """With a head for every task."""
    active: Units


class Masks(eqx.Module):
    """The units that a fit trains and uses."""

    free: Units
    """Units with trainable parameters."""
    used: Units
    """Units that are not pruned."""
    strength: Float[Array, ""]


@dataclass(frozen=True)
class CLNP(PointLearner):
    """Continual learning via neural pruning: each task freezes the units that it needs, the others stay free.

    Examples
    --------
    >>> CLNP(strength=1e-4, margin=0.01).held_out
    0.05
    """

    strength: Annotated[float, "λ, the weight of the L1 penalty"] = 0.0001
    margin: Annotated[float, "accuracy (between 0 and 1) sacrificed to prune units"] = 0.01
    held_out: Annotated[float, "fraction of each task's examples on which activity and accuracy are measured"] = 0.05

    needs_task_id: ClassVar[bool] = True
    dense_only: ClassVar[str] = "CLNP is defined here for units of dense layers only."
    recipes: ClassVar[Recipes] = {
        "fast": SEARCHED,
        # The paper's networks have 2000 units a layer; λ and margin for narrower ones are from our search too.
        "published": SEARCHED,
    }

    def __post_init__(self) -> None:
        PointLearner.__post_init__(self)
        check_not_negative(self, "strength", "margin")
        if not 0 < self.held_out < 1:
            raise VclError(f"--held-out must be between 0 and 1, but it is {self.held_out}.")

    def init(self, key: Key[Array, ""], spec: StreamSpec) -> CLNPState:
        if spec.scenario == "class":
            raise VclError(
                "CLNP is undefined in the class scenario: each task has an output layer that knows its own classes "
                "only, and nothing tells which one to ask. Use --scenario task or domain, where the task is told."
            )
        if any(is_linear(layer) for layer in self.architecture.layers):
            raise VclError("CLNP judges units by the mean of their ReLU: no layer of its network may be linear.")
        network = random(key, self.architecture, replace(spec, heads=tuple(range(spec.num_tasks))))
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
        network = self.after_pruning(
            jax.random.fold_in(key, 2), network, Masks(free, active, jnp.zeros(())), data, fit
        )
        network = release(jax.random.fold_in(key, 3), network, active)
        return CLNPState(replace_head(state.network, task.index, network), active)

    def after_pruning(self, key: Key[Array, ""], network: Weights, masks: Masks, data: Data, fit: Fit) -> Weights:
        """The network as it will be frozen: unchanged."""
        return network

    def readout(self, key: Key[Array, ""], state: CLNPState, task: Task, fit: Fit) -> Weights:
        return select_head(state.network, task.index)

    def loss(self, key: Key[Array, ""], network: Weights, masks: Masks, batch: Batch) -> Float[Array, ""]:
        """-(1/N) log likelihood + λ Σ_i |θ_i|, without a gradient for frozen weights."""

        def affine(number: int, layer: Affine, h: Float[Array, "n i"]) -> Float[Array, "n o"]:
            a = point(number, layer, h)
            if number == len(masks.free):
                return a
            # Free units have no weights into frozen ones, so no gradient of a free weight is lost here.
            return jnp.where(masks.used[number], jnp.where(masks.free[number], a, jax.lax.stop_gradient(a)), 0.0)

        outputs = forward(network, network.layers, pixels(batch.inputs), affine)
        penalty = jnp.sum(self.norms(network.head))
        for layer, free in zip(network.body, masks.free, strict=True):
            penalty += jnp.sum(free * self.norms(layer))
        return masked_mean(cross_entropy(outputs, batch.labels), batch.mask) + masks.strength * penalty

    def norms(self, layer: Affine) -> Float[Array, "o"]:
        """Σ_i |θ_ui| for each unit u."""
        return jnp.sum(jnp.abs(layer.weight), axis=0) + jnp.abs(layer.bias)


@functools.partial(jax.jit, static_argnames="fraction")
def set_aside(key: Key[Array, ""], data: Data, fraction: float) -> tuple[Data, Data]:
    """Split off a random fraction of the data (a single example is in both parts)."""
    count = jnp.minimum(jnp.ceil(fraction * data.size).astype(jnp.int32), data.size - 1)
    order = shuffle(key, data)
    rest = jnp.roll(order, -count)
    held = order[: int(fraction * data.capacity) + 1]
    return (
        Data(data.inputs[rest], data.labels[rest], data.size - count),
        Data(data.inputs[held], data.labels[held], jnp.maximum(count, 1)),
    )


@functools.partial(jax.jit, static_argnames="margin")
def cut(network: Weights, active: Units, held: Data, margin: float) -> Units:
    """The units to keep: the active ones, and the free ones whose activity is above their layer's threshold."""
    real = jnp.arange(held.capacity) < held.size

    def accuracy(layers: tuple[Affine, ...], h: Float[Array, "n _"]) -> Float[Array, ""]:
        """The accuracy of `layers` and the head, applied to activations h."""
        right = jnp.argmax(logits(from_layers([*layers, network.head]), h), axis=1) == held.labels
        return jnp.sum(right & real) / held.size

    def still_enough(
        layers: tuple[Affine, ...],
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
    """The highest of `values` that is `enough`, by bisection; -1 if none is.

    If `enough` is not monotone: a value that is enough and whose successor is not.
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
def release(key: Key[Array, ""], network: Weights, active: Units) -> Weights:
    """Initialise the inactive units again, and disconnect them from the active ones and from the head."""
    fresh = random_like(key, network)
    readable = jnp.ones(network.body[0].weight.shape[0], bool)
    body = []
    for layer, drawn, kept in zip(network.body, fresh.body, active, strict=True):
        weight = jnp.where(kept, jnp.where(readable[:, None], layer.weight, 0.0), drawn.weight)
        body.append(Affine(weight, jnp.where(kept, layer.bias, drawn.bias)))
        readable = kept
    head = Affine(jnp.where(readable[:, None], network.head.weight, 0.0), network.head.bias)
    return network.with_layers([*body, head])
