"""Kronecker VCL whose pull towards the earlier posterior is measured on the functions, not on the weights.

The quadratic pull tr(Dᵀ A D G) of `vcl.methods.kronecker_vcl` is the second-order, Kronecker-factored approximation
of

    Σ_k N_k E_{x ~ task k} KL(p(y | x, M_{t-1}) ‖ p(y | x, M)),

how far the answers to the inputs of earlier tasks have moved. After many tasks the weights are far from where the
curvatures were taken, and the approximation fails. This variant keeps the sum itself, with inputs drawn from a
Gaussian that has the mean and the covariance (its `rank` leading directions) of each task's inputs: second moments,
as in the first layer's factor A, but of every task by itself. So the state grows by (rank + 1) × inputs numbers a
task, and no example is kept. The curvature is still what the posterior's covariance comes from.

With `recall_by="class"` there is a mean for each class of a task and one covariance around them, and what is drawn
is cut off at the least and the greatest value that each input had: (rank + classes + 2) × inputs numbers a task.
Such draws are nearer to the data than those of one Gaussian.
"""

import dataclasses
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from vcl.core import Fit, Footprint, StreamSpec, Task, check_index, size
from vcl.methods.base.eigenbasis import Basis, Rotated, rotate_back, rotated_logits
from vcl.methods.base.settings import Recipes, check_not_negative, check_positive, family_settings
from vcl.methods.kronecker_vcl import Held, KroneckerState, KroneckerVCL
from vcl.nets import Affine, Weights, logits, pixels
from vcl.posteriors.kronecker import rows_of
from vcl.training import Batch, Data

GROUPS = 16
"""A minibatch of recalled inputs comes from so many draws of a task."""


class Moments(eqx.Module):
    """Mean and covariance FᵀF of the inputs of each task."""

    mean: Float[Array, "tasks d"]
    factor: Float[Array, "tasks r d"]
    count: Float[Array, "tasks"]
    """How many examples they were taken from."""
    head: Int[Array, "tasks"]
    """The output layer that answers for the task."""


class ClassMoments(eqx.Module):
    """Mean of each class, covariance FᵀF around these means and range of the inputs of each task."""

    mean: Float[Array, "tasks classes d"]
    factor: Float[Array, "tasks r d"]
    least: Float[Array, "tasks d"]
    greatest: Float[Array, "tasks d"]
    count: Float[Array, "tasks classes"]
    """How many examples they were taken from."""
    head: Int[Array, "tasks"]
    """The output layer that answers for the task."""


class RecallState(KroneckerState):
    moments: Moments | ClassMoments


class Recalled(NamedTuple):
    """Moments as the rotated network reads its inputs, and the answers of old tasks."""

    moments: Moments
    heads: Float[Array, "heads i o"] | None
    """Rotated output layers; None if all tasks share the one that is trained."""


class RecalledClasses(NamedTuple):
    """Moments as they are, since values can be cut off only where inputs are not rotated."""

    moments: ClassMoments
    heads: Affine | None
    """Output layers; None if all tasks share the one that is trained."""


@dataclass(frozen=True)
class KroneckerVCLRecall(KroneckerVCL):
    """Kronecker VCL that recalls earlier tasks by Gaussian inputs with their first two moments.

    Examples
    --------
    >>> import vcl
    >>> stream = vcl.build("permuted-digits", vcl.StreamOptions(num_tasks=2), seed=0)
    >>> result = vcl.learn(KroneckerVCLRecall(hidden=(20,), batch_size=32), stream)
    >>> result["average_accuracy"] > 0.8
    True
    """

    recall: Annotated[float, "weight of the answers to recalled inputs, relative to the data they stand for"] = 1.0
    recalled: Annotated[
        int, "recalled inputs in a minibatch, in 16 groups of one task each (0: two for each example)"
    ] = 0
    rank: Annotated[int, "directions of each task's input covariance that are kept"] = 64
    recall_by: Annotated[
        Literal["task", "class"],
        "what has a mean of its own; by class, inputs are also cut off at the range that they had",
    ] = "task"
    recall_softness: Annotated[
        float, "what logits are divided by where answers to recalled inputs are compared (1: as they are)"
    ] = 1.0
    strength: Annotated[float, "λ, the weight of the earlier posterior's curvature"] = 0.0

    recipes: ClassVar[Recipes] = {
        "fast": {
            **family_settings(
                split={"epochs": 15, "strength": 0.0, "temperature": 0.01},
                permuted={
                    "epochs": 10,
                    "batch_size": 512,
                    "recall": 0.5,
                    "recalled": 512,
                    "strength": 0.0,
                    "temperature": 0.16,
                },
            ),
            "real": {"hidden": (100, 100), "epochs": 20, "batch_size": 256, "strength": 0.0, "temperature": 0.03},
        }
    }

    def __post_init__(self) -> None:
        KroneckerVCL.__post_init__(self)
        check_positive(self, "rank", "recall_softness")
        check_not_negative(self, "recall", "recalled")

    def init(self, key: Key[Array, ""], spec: StreamSpec) -> RecallState:
        """q_0, and no moments."""
        start = KroneckerVCL.init(self, key, spec)
        tasks, width = spec.num_tasks, spec.input_size
        make = no_classes if self.recall_by == "class" else no_moments
        moments = make(tasks, spec.num_classes, min(self.rank, width), width)
        return RecallState(**fields(start), moments=moments)

    def observe(self, key: Key[Array, ""], state: RecallState, task: Task, data: Data, fit: Fit) -> RecallState:  # type: ignore[override]
        check_index("task", task.index, len(state.moments.count))
        if self.forgetting:
            count = (1.0 - self.forgetting) * state.moments.count
            state = dataclasses.replace(state, moments=dataclasses.replace(state.moments, count=count))
        after = KroneckerVCL.observe(self, key, state, task, data, fit)
        add = with_classes if isinstance(state.moments, ClassMoments) else with_task
        return RecallState(**fields(after), moments=add(state.moments, task.index, task.head, data))

    def recollection(self, state: KroneckerState, bases: tuple[Basis, ...]) -> Recalled | RecalledClasses | None:
        """What `loss` needs of the earlier tasks."""
        if not isinstance(state, RecallState) or not bool(state.trained.any()) or not self.recall:
            return None
        if isinstance(state.moments, ClassMoments):
            return RecalledClasses(state.moments, state.mean.head if len(state.trained) > 1 else None)
        return rotated_moments(state.moments, bases, state.mean)

    def footprint(self, state: RecallState) -> Footprint:  # type: ignore[override]
        """The posterior, and the moments of each task."""
        posterior = KroneckerVCL.footprint(self, state)
        return Footprint(posterior.parameters + size(state.moments), posterior.stored_examples)

    def loss(self, key: Key[Array, ""], rotated: Rotated, held: Held, batch: Batch) -> Float[Array, ""]:
        """That of Kronecker VCL, and Σ_k (N_k / N) E KL(p(y | x, M_{t-1}) ‖ p(y | x, M))."""
        data_key, recall_key = jax.random.split(key)
        loss = KroneckerVCL.loss(self, data_key, rotated, held, batch)
        if held.recalled is None:
            return loss
        weight = self.recall * jnp.sum(held.recalled.moments.count) / batch.size
        number = self.recalled or 2 * self.batch_size
        distance = moved_classes if isinstance(held.recalled, RecalledClasses) else moved
        return loss + weight * distance(recall_key, rotated, held, held.recalled, number, self.recall_softness)


def no_moments(tasks: int, classes: int, rank: int, width: int) -> Moments:
    """Room for the moments of tasks."""
    return Moments(
        jnp.zeros((tasks, width)), jnp.zeros((tasks, rank, width)), jnp.zeros(tasks), jnp.zeros(tasks, jnp.int32)
    )


def no_classes(tasks: int, classes: int, rank: int, width: int) -> ClassMoments:
    """Room for the moments of the classes of tasks."""
    return ClassMoments(
        jnp.zeros((tasks, classes, width)),
        jnp.zeros((tasks, rank, width)),
        jnp.zeros((tasks, width)),
        jnp.zeros((tasks, width)),
        jnp.zeros((tasks, classes)),
        jnp.zeros(tasks, jnp.int32),
    )


def fields(state: KroneckerState) -> dict[str, Any]:
    """The fields that every state of Kronecker VCL has."""
    return {name: getattr(state, name) for name in ("mean", "pairs", "trained", "coreset")}


def moved(
    key: Key[Array, ""], rotated: Rotated, held: Held, recalled: Recalled, number: int, softness: float = 1.0
) -> Float[Array, ""]:
    """E KL(p(y | x, M_{t-1}) ‖ p(y | x, M)) over inputs drawn for the earlier tasks."""
    inputs, tasks = draw(key, recalled.moments, number)

    def divergence(x: Float[Array, "n d"], task: Int[Array, ""]) -> Float[Array, ""]:
        before, now = held.centre, rotated
        if recalled.heads is not None:
            head = recalled.heads[recalled.moments.head[task]]
            before, now = (*before[:-1], head), (*now[:-1], head)
        old, new = (rotated_logits(held.network, held.bases, w, x)[0] for w in (before, now))
        return mean_divergence(old, new, softness)

    return jnp.mean(jax.vmap(divergence)(inputs, tasks))


def moved_classes(
    key: Key[Array, ""], rotated: Rotated, held: Held, recalled: RecalledClasses, number: int, softness: float = 1.0
) -> Float[Array, ""]:
    """The same over inputs drawn for the classes of the earlier tasks."""
    inputs, tasks = draw_classes(key, recalled.moments, number)
    # Rotating the weights back costs less than rotating as many inputs.
    before, now = held.network, rotate_back(held.bases, rotated, held.network)
    if recalled.heads is None:
        flat = inputs.reshape(-1, inputs.shape[-1])
        return mean_divergence(logits(before, flat), logits(now, flat), softness)

    def divergence(x: Float[Array, "n d"], head: Affine) -> Float[Array, ""]:
        old, new = (logits(dataclasses.replace(w, head=head), x) for w in (before, now))
        return mean_divergence(old, new, softness)

    number_of = recalled.moments.head[tasks]
    return jnp.mean(jax.vmap(divergence)(inputs, jax.tree.map(lambda a: a[number_of], recalled.heads)))


def mean_divergence(
    before: Float[Array, "n c"], now: Float[Array, "n c"], softness: float = 1.0
) -> Float[Array, ""]:
    """T² KL(softmax(before / T) ‖ softmax(now / T)), on average; for large T half the variance of the change.

    Where answers are sure, KL says little of how the logits moved; softer answers say more (Hinton et al., 2015).
    """
    before, now = jax.nn.log_softmax(before / softness), jax.nn.log_softmax(now / softness)
    return softness**2 * jnp.mean(jnp.sum(jnp.exp(before) * (before - now), axis=-1))


def draw(
    key: Key[Array, ""], moments: Moments, number: int
) -> tuple[Float[Array, "groups n d"], Int[Array, "groups"]]:
    """Inputs of tasks drawn by their numbers of examples, a group for each draw."""
    task_key, noise_key = jax.random.split(key)
    tasks = places(moments.count, jax.random.uniform(task_key, (GROUPS,)))
    noise = jax.random.normal(noise_key, (GROUPS, -(-number // GROUPS), moments.factor.shape[1]))
    return moments.mean[tasks][:, None] + jnp.einsum("gnr,grd->gnd", noise, moments.factor[tasks]), tasks


def draw_classes(
    key: Key[Array, ""], moments: ClassMoments, number: int
) -> tuple[Float[Array, "groups n d"], Int[Array, "groups"]]:
    """Inputs of tasks, and within these of classes, drawn by their numbers of examples; cut off at their range."""
    task_key, class_key, noise_key = jax.random.split(key, 3)
    n = -(-number // GROUPS)
    tasks = places(jnp.sum(moments.count, axis=1), jax.random.uniform(task_key, (GROUPS,)))
    classes = jax.vmap(places)(moments.count[tasks], jax.random.uniform(class_key, (GROUPS, n)))
    noise = jax.random.normal(noise_key, (GROUPS, n, moments.factor.shape[1]))
    inputs = moments.mean[tasks[:, None], classes] + jnp.einsum("gnr,grd->gnd", noise, moments.factor[tasks])
    return jnp.clip(inputs, moments.least[tasks][:, None], moments.greatest[tasks][:, None]), tasks


def places(counts: Float[Array, "k"], uniform: Float[Array, "n"]) -> Int[Array, "n"]:
    """Places drawn by their counts."""
    so_far = jnp.cumsum(counts)
    # Empty places of the state, at the end, must not change the draw: growing equals allocating up front.
    return jnp.minimum(jnp.searchsorted(so_far, uniform * so_far[-1], side="right"), len(counts) - 1)


@jax.jit
def rotated_moments(moments: Moments, bases: tuple[Basis, ...], mean: Weights) -> Recalled:
    """Moments of `rotated_data`: with the 1 of the bias, in the eigenbasis, and a leverage of zero."""
    heads = None
    if mean.head.bias.shape[0] > 1:
        heads = jax.vmap(lambda head: bases[-1].rotate(rows_of(head)))(mean.head)
    if mean.network.reads_images:
        return Recalled(moments, heads)

    def turned(rows: Float[Array, "*n d"], one: float) -> Float[Array, "*n e"]:
        last = jnp.full((*rows.shape[:-1], 1), one)
        rotated = jnp.concatenate([rows, last], axis=-1) @ bases[0].inputs
        return jnp.concatenate([rotated, jnp.zeros_like(last)], axis=-1)

    # One task after the other: so rounding does not depend on how many there is room for.
    means, factors = jax.lax.map(
        lambda task: (turned(task[0], 1.0), turned(task[1], 0.0)), (moments.mean, moments.factor)
    )
    return Recalled(Moments(means, factors, moments.count, moments.head), heads)


@jax.jit
def with_task(moments: Moments, task: int | Int[Array, ""], head: int | Int[Array, ""], data: Data) -> Moments:
    """Moments with those of one more batch of a task."""
    real = (jnp.arange(data.capacity) < data.size)[:, None]
    inputs = pixels(data.inputs)
    count, mean = data.size.astype(jnp.float32), jnp.sum(inputs * real, axis=0) / data.size
    factor = leading((inputs - mean) * real, data.size, moments.factor.shape[1])
    old_count, old_mean, old_factor = moments.count[task], moments.mean[task], moments.factor[task]
    share = count / (old_count + count)
    change = jnp.sqrt(share * (1.0 - share)) * (mean - old_mean)
    rows = jnp.concatenate([jnp.sqrt(1.0 - share) * old_factor, jnp.sqrt(share) * factor, change[None]])
    return Moments(
        moments.mean.at[task].set(old_mean + share * (mean - old_mean)),
        moments.factor.at[task].set(shortened(rows, len(factor))),
        moments.count.at[task].set(old_count + count),
        moments.head.at[task].set(head),
    )


@jax.jit
def with_classes(
    moments: ClassMoments, task: int | Int[Array, ""], head: int | Int[Array, ""], data: Data
) -> ClassMoments:
    """Moments of classes with those of one more batch of a task."""
    real = jnp.arange(data.capacity) < data.size
    inputs = pixels(data.inputs)
    old_count, old_mean, old_factor = moments.count[task], moments.mean[task], moments.factor[task]
    number = len(old_count)
    # What fills up the array has a class of its own, which is left out.
    labels = jnp.where(real, data.labels, number)
    count = jnp.zeros(number + 1).at[labels].add(1.0)[:-1]
    mean = jnp.zeros((number + 1, inputs.shape[1])).at[labels].add(inputs)[:-1] / jnp.maximum(count, 1.0)[:, None]
    centred = (inputs - mean[jnp.minimum(labels, number - 1)]) * real[:, None]
    factor = leading(centred, data.size, moments.factor.shape[1])
    all_count = old_count + count
    shares = jnp.where(count > 0, count / jnp.maximum(all_count, 1.0), 0.0)[:, None]
    total = jnp.sum(all_count)
    change = jnp.sqrt(all_count[:, None] * shares * (1.0 - shares) / total) * (mean - old_mean)
    share = jnp.sum(count) / total
    rows = jnp.concatenate([jnp.sqrt(1.0 - share) * old_factor, jnp.sqrt(share) * factor, change])
    seen = jnp.sum(old_count) > 0
    least = jnp.min(jnp.where(real[:, None], inputs, jnp.inf), axis=0)
    greatest = jnp.max(jnp.where(real[:, None], inputs, -jnp.inf), axis=0)
    return ClassMoments(
        moments.mean.at[task].set(old_mean + shares * (mean - old_mean)),
        moments.factor.at[task].set(shortened(rows, len(factor))),
        moments.least.at[task].set(jnp.where(seen, jnp.minimum(moments.least[task], least), least)),
        moments.greatest.at[task].set(jnp.where(seen, jnp.maximum(moments.greatest[task], greatest), greatest)),
        moments.count.at[task].set(all_count),
        moments.head.at[task].set(head),
    )


def leading(centred: Float[Array, "n d"], size: Int[Array, ""], rank: int) -> Float[Array, "{rank} d"]:
    """The leading directions of a covariance, each as long as its standard deviation."""
    values, vectors = jnp.linalg.eigh(centred.T @ centred / size)
    return jnp.sqrt(jnp.maximum(values[-rank:], 0.0))[:, None] * vectors[:, -rank:].T


def shortened(rows: Float[Array, "n d"], rank: int) -> Float[Array, "{rank} d"]:
    """A factor of nearly the same FᵀF with fewer rows."""
    _, sizes, directions = jnp.linalg.svd(rows, full_matrices=False)
    return sizes[:rank, None] * directions[:rank]
