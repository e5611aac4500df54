"""iCaRL, incremental classifier and representation learning (Rebuffi et al., 2017).

A budget of exemplars is shared evenly by the classes seen so far. A task trains the network on its data D and on the
exemplars, with a sigmoid g_o for each output o, on

    -(1/N) Σ_n Σ_o [z_no log g_o(x_n) + (1 - z_no) log(1 - g_o(x_n))],

where the targets z are d times what the network said before the task (distillation) and 1 - d times the label, 0 or
1, for outputs that were there before, and the label for outputs of the task's own classes. The paper has d = 1: new
examples are then asked to go on looking like the old classes that they happened to look like before they were seen.
Outputs of classes not yet seen have no part. Where a task brings classes that are old (the domain scenario), its own
data is given their labels, exemplars the old outputs. An exemplar of an earlier task may be given more weight than a
new example (`emphasis`; the paper has 1). Weights that begin small (`init_scale`) leave less that is random in the
features, of which the nearest mean is taken.

With φ the top hidden layer, scaled to length one, the exemplars of a class are chosen by herding (their mean is near
the class's), shrinking drops the last chosen, and their mean, scaled to length one, is the class's prototype μ:

    p(y | x) ∝ exp(-s min_{μ of y} ‖φ(x) - μ‖²).

A class that occurs in several tasks has exemplars and a prototype for each: a pair of task and class is one kind of
thing to remember. Where each task has a head, only its own prototypes compete.
"""

import functools
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key, Shaped

from vcl import memory
from vcl.core import Fit, Footprint, StreamSpec, Task, size
from vcl.errors import VclError
from vcl.methods.point import Settings, check_positive, recipes
from vcl.networks import MLP, Dense, features, logits_by_head, pixels, random
from vcl.training import Adam, Batch, Data, masked_mean

BATCH = 1000
UNSEEN = -1e4
"""The score of a class without prototypes: no probability, but a finite logarithm."""


class Exemplars(eqx.Module):
    """The examples kept: the first `size` rows."""

    inputs: Shaped[Array, "budget d"]
    pairs: Int[Array, "budget"]
    """Task and class in one number: task · classes + class."""
    places: Int[Array, "budget"]
    """Which in its pair's herding order."""
    size: Int[Array, ""]


class ICaRLState(eqx.Module):
    network: MLP
    exemplars: Exemplars
    heads: Int[Array, "tasks"]
    """The head of each task."""


class Distillation(eqx.Module):
    """What the targets of a task are made from."""

    network: MLP
    """As it was before the task."""
    old: Bool[Array, "heads c"]
    """Outputs of classes seen before the task."""
    new: Bool[Array, "heads c"]
    """Outputs of classes that the task's data brings."""
    heads: Int[Array, "tasks"]
    task: Int[Array, ""]


class Prototypes(eqx.Module):
    """A classifier by the nearest mean of exemplars."""

    body: tuple[Dense, ...]
    means: Float[Array, "tasks c f"]
    known: Bool[Array, "tasks c"]
    """Which of them may answer."""


@dataclass(frozen=True)
class ICaRL(Settings):
    """iCaRL: exemplars chosen by herding, distillation of old outputs, nearest-mean classification."""

    exemplars: Annotated[int, "examples kept in all, shared evenly by the classes seen so far"] = 2000
    emphasis: Annotated[float, "weight of an earlier task's exemplar against that of a new example (paper: 1)"] = 1.0
    distillation: Annotated[float, "d, the share of what the network said before in old outputs (paper: 1)"] = 1.0
    init_scale: Annotated[float, "the first weights are those of a usual network, times this"] = 1.0
    sharpness: Annotated[float, "s, how fast probability falls with the squared distance to a prototype"] = 20.0

    recipes: ClassVar[dict[str, dict[str, dict[str, Any]]]] = recipes(
        split={"emphasis": 5.0, "distillation": 0.1, "init_scale": 0.1, "epochs": 20}, permuted={"emphasis": 30.0}
    )

    def __post_init__(self) -> None:
        Settings.__post_init__(self)
        check_positive(self, "exemplars", "emphasis", "init_scale", "sharpness")
        if not 0 <= self.distillation <= 1:
            raise VclError(f"--distillation must be a share, from 0 to 1, but it is {self.distillation}.")

    def init(self, key: Key[Array, ""], spec: StreamSpec) -> ICaRLState:
        kinds = spec.num_classes * (1 if spec.scenario == "class" else spec.num_tasks)
        if self.exemplars < kinds:
            raise VclError(
                f"{self.exemplars} exemplars are too few for {kinds} classes (counted in each task): every one "
                "needs at least one to be recognised by. Choose larger --exemplars."
            )
        exemplars = Exemplars(
            jnp.zeros((self.exemplars, spec.input_size), spec.input_dtype),
            jnp.zeros(self.exemplars, jnp.int32),
            jnp.zeros(self.exemplars, jnp.int32),
            jnp.zeros((), jnp.int32),
        )
        network = jax.tree.map(lambda a: self.init_scale * a, random(key, self.hidden, spec))
        return ICaRLState(network, exemplars, jnp.asarray(spec.heads, jnp.int32))

    def observe(self, key: Key[Array, ""], state: ICaRLState, task: Task, data: Data, fit: Fit) -> ICaRLState:
        classes = state.network.head.bias.shape[1]
        index = jnp.int32(task.index)
        mixed, places = merge(state.exemplars, index, classes, data)
        before = distillation(state, index, mixed)
        step = Adam(self.loss, self.learning_rate, self.schedule)
        network = fit(
            key, "train", step, state.network, before, mixed, epochs=self.epochs, batch_size=self.batch_size
        )
        exemplars = choose_exemplars(network.body, index, classes, mixed, places, self.exemplars)
        return ICaRLState(network, exemplars, state.heads)

    def readout(self, key: Key[Array, ""], state: ICaRLState, task: Task, fit: Fit) -> Prototypes:
        means, known = means_of_exemplars(state)
        return Prototypes(state.network.body, means, known & (state.heads == task.head)[:, None])

    def predict(
        self, key: Key[Array, ""], params: Prototypes, inputs: Shaped[Array, "n d"]
    ) -> Float[Array, "1 n c"]:
        """log p(y | x), from the distance to the nearest prototype of each class."""
        points = normalised_features(params.body, inputs)
        # ‖φ - μ‖², since both have length one.
        distances = 2.0 - 2.0 * jnp.einsum("nf,tcf->ntc", points, params.means)
        scores = jnp.max(jnp.where(params.known, -self.sharpness * distances, UNSEEN), axis=1)
        return jax.nn.log_softmax(scores)[None]

    def footprint(self, state: ICaRLState) -> Footprint:
        return Footprint(size(state.network), int(state.exemplars.size))

    def loss(self, key: Key[Array, ""], network: MLP, before: Distillation, batch: Batch) -> Float[Array, ""]:
        """Binary cross-entropy of all outputs seen so far against their targets."""
        seen = before.old | before.new
        inputs = pixels(batch.inputs)
        wanted = targets(before, logits_by_head(before.network, inputs), batch.labels, self.distillation)
        outputs = logits_by_head(network, inputs)
        losses = jnp.sum((jax.nn.softplus(outputs) - wanted * outputs) * seen, axis=(1, 2))
        earlier = batch.labels // seen.shape[1] != before.task
        return masked_mean(jnp.where(earlier, self.emphasis, 1.0) * losses, batch.mask)


def targets(
    before: Distillation, outputs: Float[Array, "n heads c"], pairs: Int[Array, "n"], share: float = 1.0
) -> Float[Array, "n heads c"]:
    """z: old outputs, by their share, as they were, others as the labels say; for the task's data also if both."""
    heads, classes = before.old.shape
    tasks = pairs // classes
    labels = jax.nn.one_hot(before.heads[tasks] * classes + pairs % classes, heads * classes).reshape(outputs.shape)
    earlier = (tasks != before.task)[:, None, None]
    distilled = before.old & (earlier | ~before.new)
    return jnp.where(distilled, share * jax.nn.sigmoid(outputs) + (1.0 - share) * labels, labels)


@functools.partial(jax.jit, static_argnames="classes")
def merge(
    exemplars: Exemplars, task: Int[Array, ""], classes: int, data: Data
) -> tuple[Data, Int[Array, "capacity"]]:
    """The exemplars and the task's data, labelled by their pairs; and the places of the exemplars."""
    budget = exemplars.pairs.shape[0]
    filling = jnp.concatenate([jnp.arange(budget) >= exemplars.size, jnp.arange(data.capacity) >= data.size])
    order = jnp.argsort(filling, stable=True)
    mixed = Data(
        jnp.concatenate([exemplars.inputs, data.inputs])[order],
        jnp.concatenate([exemplars.pairs, task * classes + data.labels])[order],
        exemplars.size + data.size,
    )
    return mixed, jnp.concatenate([exemplars.places, jnp.zeros_like(data.labels)])[order]


@jax.jit
def distillation(state: ICaRLState, task: Int[Array, ""], mixed: Data) -> Distillation:
    """What the targets are made from; an exemplar of a class tells that it was seen before."""
    heads, classes = state.network.head.bias.shape

    def outputs_of(pairs: Int[Array, "n"], which: Bool[Array, "n"]) -> Bool[Array, "heads c"]:
        outputs = state.heads[pairs // classes] * classes + pairs % classes
        return jnp.zeros(heads * classes, bool).at[outputs].max(which).reshape(heads, classes)

    rows = jnp.arange(mixed.capacity)
    kept = rows < state.exemplars.size
    arrived = (rows < mixed.size) & ~kept
    return Distillation(
        state.network, outputs_of(mixed.labels, kept), outputs_of(mixed.labels, arrived), state.heads, task
    )


@functools.partial(jax.jit, static_argnames=("classes", "budget"))
def choose_exemplars(
    body: tuple[Dense, ...],
    task: Int[Array, ""],
    classes: int,
    mixed: Data,
    places: Int[Array, "capacity"],
    budget: int,
) -> Exemplars:
    """An even share for every pair: the task's own by herding, of the others the first in the order they have."""
    real = jnp.arange(mixed.capacity) < mixed.size
    pairs = jnp.where(real, mixed.labels, -1)
    seen = jnp.unique(pairs, size=budget + 1, fill_value=-1)
    share = budget // jnp.sum(seen >= 0)
    own = real & (pairs // classes == task)
    points = jax.lax.map(lambda row: normalised_features(body, row[None])[0], mixed.inputs, batch_size=BATCH)
    herded = memory.herding(points, jnp.where(own, pairs % classes, -1), classes, share)
    places = jnp.where(own, herded, places)
    kept = real & (places < share)
    order = jnp.argsort(~kept, stable=True)[:budget]
    return Exemplars(mixed.inputs[order], mixed.labels[order], places[order], jnp.sum(kept))


@jax.jit
def means_of_exemplars(state: ICaRLState) -> tuple[Float[Array, "tasks c f"], Bool[Array, "tasks c"]]:
    """The prototypes, and whether there are any exemplars behind them."""
    exemplars, classes = state.exemplars, state.network.head.bias.shape[1]
    tasks = state.heads.shape[0]
    real = jnp.arange(exemplars.pairs.shape[0]) < exemplars.size
    points = normalised_features(state.network.body, exemplars.inputs) * real[:, None]
    totals = jnp.zeros((tasks * classes, points.shape[1])).at[exemplars.pairs].add(points)
    known = jnp.zeros(tasks * classes, bool).at[exemplars.pairs].max(real)
    return normalised(totals).reshape(tasks, classes, -1), known.reshape(tasks, classes)


def normalised_features(body: tuple[Dense, ...], inputs: Shaped[Array, "n d"]) -> Float[Array, "n f"]:
    """φ: the top hidden layer, scaled to length one."""
    return normalised(features(body, pixels(inputs)))


def normalised(vectors: Float[Array, "*n f"]) -> Float[Array, "*n f"]:
    return vectors / jnp.maximum(jnp.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)
