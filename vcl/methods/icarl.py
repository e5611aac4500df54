"""iCaRL, incremental classifier and representation learning (Rebuffi et al., 2017).

A budget of exemplars is shared evenly by the classes seen so far. A task trains the network on its data D and on
the exemplars, with a sigmoid g_o for each output o, on

    -(1/N) Σ_n Σ_o [z_no log g_o(x_n) + (1 - z_no) log(1 - g_o(x_n))],

where the targets z are the network's outputs before the task for old classes (distillation), and the label, 0 or 1,
for the task's own classes. Outputs of classes not yet seen are left out. Where a task brings classes that are old
(the domain scenario), its own data have their labels as targets, exemplars the old outputs.

With φ the top hidden layer, scaled to length one, the exemplars of a class are chosen by herding (their mean is
near the class's), shrinking drops the last chosen, and their mean, scaled to length one, is the class's prototype
μ. The prediction is the class of the nearest prototype. The paper stops there; for probabilities we take

    p(y | x) ∝ exp(-s min_{μ of y} ‖φ(x) - μ‖²).

A class that occurs in several tasks has exemplars and a prototype for each. Where each task has a head, only its
own prototypes compete.
"""

import functools
from dataclasses import dataclass
from typing import Annotated, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key, Shaped

from vcl import memory
from vcl.core import Fit, Footprint, StreamSpec, Task, check_index, size
from vcl.errors import VclError
from vcl.methods.base.settings import Recipes, Settings, check_positive, family_settings
from vcl.nets import Weights, features, logits_by_head, pixels, random
from vcl.training import Adam, Batch, Data, masked_mean

BATCH = 1000
UNSEEN = -1e4
"""The score of a class without prototypes: no probability, but a finite logarithm."""


class Exemplars(eqx.Module):
    """The examples kept: the first `size` rows."""

    inputs: Shaped[Array, "budget d"]
    labels: Int[Array, "budget"]
    tasks: Int[Array, "budget"]
    places: Int[Array, "budget"]
    """Position in the herding order of its class in its task."""
    size: Int[Array, ""]


class ICaRLState(eqx.Module):
    network: Weights
    exemplars: Exemplars
    heads: Int[Array, "tasks"]
    """The head of each task."""


class Distillation(eqx.Module):
    """What the targets of a task depend on."""

    network: Weights
    """The network before the task."""
    old: Bool[Array, "heads c"]
    """Outputs of classes seen before the task."""
    new: Bool[Array, "heads c"]
    """Outputs of classes that the task's data brings."""
    heads: Int[Array, "tasks"]
    task: Int[Array, ""]


class Prototypes(eqx.Module):
    """A classifier by the nearest mean of exemplars."""

    network: Weights
    means: Float[Array, "tasks c f"]
    known: Bool[Array, "tasks c"]
    """Those that take part in a prediction."""


@dataclass(frozen=True)
class ICaRL(Settings):
    """iCaRL: exemplars chosen by herding, distillation of old outputs, nearest-mean classification.

    Examples
    --------
    >>> ICaRL(exemplars=500).exemplars
    500
    """

    exemplars: Annotated[int, "examples kept in all, shared evenly by the classes seen so far"] = 2000
    sharpness: Annotated[float, "s, how fast probability falls with the squared distance to a prototype"] = 20.0

    recipes: ClassVar[Recipes] = {
        "fast": family_settings(
            split={},
            permuted={},
            split_mnist={"learning_rate": 0.0017},
            permuted_mnist={"learning_rate": 0.0017, "schedule": "cosine"},
        ),
        # Epochs and batch size of the paper. Its rate (SGD, 2.0) is for a residual network: Adam's default instead.
        "published": family_settings(
            split={"epochs": 70, "batch_size": 128, "learning_rate": 0.001},
            permuted={"epochs": 70, "batch_size": 128, "learning_rate": 0.001},
        ),
    }

    def __post_init__(self) -> None:
        Settings.__post_init__(self)
        check_positive(self, "exemplars", "sharpness")

    def init(self, key: Key[Array, ""], spec: StreamSpec) -> ICaRLState:
        kinds = spec.num_classes * (1 if spec.scenario == "class" else spec.num_tasks)
        if self.exemplars < kinds:
            raise VclError(
                f"{self.exemplars} exemplars are too few for {kinds} classes (counted in each task): each "
                "needs at least one. Choose larger --exemplars."
            )
        inputs = jnp.zeros((self.exemplars, spec.input_size), spec.input_dtype)
        zeros = jnp.zeros(self.exemplars, jnp.int32)
        exemplars = Exemplars(inputs, zeros, zeros, zeros, jnp.zeros((), jnp.int32))
        return ICaRLState(random(key, self.architecture, spec), exemplars, jnp.asarray(spec.heads, jnp.int32))

    def observe(self, key: Key[Array, ""], state: ICaRLState, task: Task, data: Data, fit: Fit) -> ICaRLState:
        check_index("task", task.index, len(state.heads))
        classes = state.network.head.bias.shape[1]
        index = jnp.int32(task.index)
        mixed, places = merge(state.exemplars, index, data)
        before = distillation(state, index, mixed)
        step = Adam(self.loss, self.learning_rate, self.schedule)
        network = fit(
            key, "train", step, state.network, before, mixed, epochs=self.epochs, batch_size=self.batch_size
        )
        exemplars = choose_exemplars(network, index, classes, len(state.heads), mixed, places, self.exemplars)
        return ICaRLState(network, exemplars, state.heads)

    def readout(self, key: Key[Array, ""], state: ICaRLState, task: Task, fit: Fit) -> Prototypes:
        means, known = means_of_exemplars(state)
        check_index("task", task.index, len(state.heads))
        return Prototypes(state.network, means, known & (state.heads == task.head)[:, None])

    def predict(
        self, key: Key[Array, ""], params: Prototypes, inputs: Shaped[Array, "n d"]
    ) -> Float[Array, "1 n c"]:
        """log p(y | x), from the distance to the nearest prototype of each class."""
        points = normalised_features(params.network, inputs)
        # ‖φ - μ‖², since both have length one.
        distances = 2.0 - 2.0 * jnp.einsum("nf,tcf->ntc", points, params.means)
        scores = jnp.max(jnp.where(params.known, -self.sharpness * distances, UNSEEN), axis=1)
        return jax.nn.log_softmax(scores)[None]

    def footprint(self, state: ICaRLState) -> Footprint:
        return Footprint(size(state.network), int(state.exemplars.size))

    def loss(self, key: Key[Array, ""], network: Weights, before: Distillation, batch: Batch) -> Float[Array, ""]:
        """Binary cross-entropy of all outputs seen so far against their targets."""
        inputs = pixels(batch.inputs)
        wanted = targets(before, logits_by_head(before.network, inputs), batch)
        return masked_mean(binary_cross_entropy(logits_by_head(network, inputs), wanted, before), batch.mask)


def tasks_of(examples: Data | Batch) -> Int[Array, "n"]:
    """The task of each example."""
    assert examples.groups is not None
    return examples.groups


def binary_cross_entropy(
    outputs: Float[Array, "n heads c"], wanted: Float[Array, "n heads c"], before: Distillation
) -> Float[Array, "n"]:
    """-Σ_o [z_o log g_o + (1 - z_o) log(1 - g_o)] over the classes seen so far, with g = sigmoid(outputs)."""
    seen = before.old | before.new
    return jnp.sum((jax.nn.softplus(outputs) - wanted * outputs) * seen, axis=(1, 2))


def labels_by_head(before: Distillation, batch: Batch) -> Float[Array, "n heads c"]:
    """1 for the class of each example at the head of its task, else 0."""
    heads, classes = before.old.shape
    own_head = jax.nn.one_hot(before.heads[tasks_of(batch)], heads)
    return own_head[:, :, None] * jax.nn.one_hot(batch.labels, classes)[:, None]


def targets(before: Distillation, outputs: Float[Array, "n heads c"], batch: Batch) -> Float[Array, "n heads c"]:
    """z: the old outputs for old classes, else the labels; for the task's own data the labels of all its classes."""
    earlier = (tasks_of(batch) != before.task)[:, None, None]
    distilled = before.old & (earlier | ~before.new)
    return jnp.where(distilled, jax.nn.sigmoid(outputs), labels_by_head(before, batch))


@jax.jit
def merge(exemplars: Exemplars, task: Int[Array, ""], data: Data) -> tuple[Data, Int[Array, "capacity"]]:
    """The exemplars and the task's data, each with its task; and the places of the exemplars."""
    budget = exemplars.labels.shape[0]
    filling = jnp.concatenate([jnp.arange(budget) >= exemplars.size, jnp.arange(data.capacity) >= data.size])
    order = jnp.argsort(filling, stable=True)
    mixed = Data(
        jnp.concatenate([exemplars.inputs, data.inputs])[order],
        jnp.concatenate([exemplars.labels, data.labels])[order],
        exemplars.size + data.size,
        jnp.concatenate([exemplars.tasks, jnp.full_like(data.labels, task)])[order],
    )
    return mixed, jnp.concatenate([exemplars.places, jnp.zeros_like(data.labels)])[order]


@jax.jit
def distillation(state: ICaRLState, task: Int[Array, ""], mixed: Data) -> Distillation:
    """What the targets depend on; a class is old if it has exemplars."""

    def outputs_of(which: Bool[Array, "n"]) -> Bool[Array, "heads c"]:
        nothing = jnp.zeros(state.network.head.bias.shape, bool)
        return nothing.at[state.heads[tasks_of(mixed)], mixed.labels].max(which)

    rows = jnp.arange(mixed.capacity)
    kept = rows < state.exemplars.size
    arrived = (rows < mixed.size) & ~kept
    return Distillation(state.network, outputs_of(kept), outputs_of(arrived), state.heads, task)


@functools.partial(jax.jit, static_argnames=("classes", "num_tasks", "budget"))
def choose_exemplars(
    network: Weights,
    task: Int[Array, ""],
    classes: int,
    num_tasks: int,
    mixed: Data,
    places: Int[Array, "capacity"],
    budget: int,
) -> Exemplars:
    """An even share for each class of each task: the task's own by herding, of the others the first ones."""
    tasks = tasks_of(mixed)
    real = jnp.arange(mixed.capacity) < mixed.size
    seen = jnp.zeros((num_tasks, classes), bool).at[tasks, mixed.labels].max(real)
    share = budget // jnp.sum(seen)
    own = real & (tasks == task)
    points = jax.lax.map(lambda row: normalised_features(network, row[None])[0], mixed.inputs, batch_size=BATCH)
    herded = memory.herding(points, jnp.where(own, mixed.labels, -1), classes, share)
    places = jnp.where(own, herded, places)
    kept = real & (places < share)
    order = jnp.argsort(~kept, stable=True)[:budget]
    return Exemplars(mixed.inputs[order], mixed.labels[order], tasks[order], places[order], jnp.sum(kept))


@jax.jit
def means_of_exemplars(state: ICaRLState) -> tuple[Float[Array, "tasks c f"], Bool[Array, "tasks c"]]:
    """The prototypes, and whether there are any exemplars behind them."""
    exemplars, shape = state.exemplars, (state.heads.shape[0], state.network.head.bias.shape[1])
    real = jnp.arange(exemplars.labels.shape[0]) < exemplars.size
    points = normalised_features(state.network, exemplars.inputs) * real[:, None]
    totals = jnp.zeros((*shape, points.shape[1])).at[exemplars.tasks, exemplars.labels].add(points)
    known = jnp.zeros(shape, bool).at[exemplars.tasks, exemplars.labels].max(real)
    return normalised(totals), known


def normalised_features(network: Weights, inputs: Shaped[Array, "n d"]) -> Float[Array, "n f"]:
    """φ: the top hidden layer, scaled to length one."""
    return normalised(features(network, pixels(inputs)))


def normalised(vectors: Float[Array, "*n f"]) -> Float[Array, "*n f"]:
    return vectors / jnp.maximum(jnp.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)
