"""Kronecker VCL whose pull towards the earlier posterior is measured on the functions, not on the weights.

The quadratic pull tr(Dᵀ A D G) of `vcl.methods.kronecker_vcl` is the second-order, Kronecker-factored approximation
of

    Σ_k N_k E_{x ~ task k} KL(p(y | x, M_{t-1}) ‖ p(y | x, M)),

how far the answers to the inputs of earlier tasks have moved. After many tasks the weights are far from where the
curvatures were taken, and the approximation fails. This variant keeps the sum itself, with inputs drawn from a
Gaussian that has the mean and the covariance (its `rank` leading directions) of each task's inputs: second moments,
as in the first layer's factor A, but of every task by itself. So the state grows by (rank + 1) × inputs numbers a
task, and no example is kept. The curvature is still what the posterior's covariance comes from.
"""

import dataclasses
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from vcl.core import Fit, Footprint, StreamSpec, Task, check_index, size
from vcl.methods.base.eigenbasis import Basis, Rotated, rotated_logits
from vcl.methods.base.settings import Recipes, check_not_negative, check_positive, family_settings
from vcl.methods.kronecker_vcl import Held, KroneckerState, KroneckerVCL
from vcl.nets import Weights, pixels
from vcl.posteriors.kronecker import rows_of
from vcl.training import Batch, Data

GROUPS = 16
"""A minibatch of recalled inputs comes from so many draws of a task."""


SPLIT = {"hidden": (200,), "epochs": 15, "strength": 0.0, "temperature": 0.01}
"""The recipe for split streams, and for `vcl.Model`; split MNIST has more of its own."""


class Moments(eqx.Module):
    """Mean and covariance FᵀF of the inputs of each task."""

    mean: Float[Array, "tasks d"]
    factor: Float[Array, "tasks r d"]
    count: Float[Array, "tasks"]
    """How many examples they were taken from."""
    head: Int[Array, "tasks"]
    """The output layer that answers for the task."""


class RecallState(KroneckerState):
    moments: Moments


class Recalled(NamedTuple):
    """Moments as the rotated network reads its inputs, and the answers of old tasks."""

    moments: Moments
    heads: Float[Array, "heads i o"] | None
    """Rotated output layers; None if all tasks share the one that is trained."""
    head: Int[Array, ""]
    """The number of the one that is trained."""


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
    recall_softness: Annotated[
        float, "what logits are divided by where answers to recalled inputs are compared (1: as they are)"
    ] = 1.0
    strength: Annotated[float, "λ, the weight of the earlier posterior's curvature"] = 0.0

    recipes: ClassVar[Recipes] = {
        "fast": {
            # Chosen on validation data: docs/recipes.md.
            **family_settings(
                split=SPLIT,
                permuted={
                    "epochs": 10,
                    "batch_size": 512,
                    "recall": 0.2,
                    "recalled": 512,
                    "rank": 256,
                    "recall_softness": 2.0,
                    "strength": 0.0,
                    "temperature": 0.16,
                },
                split_mnist={
                    "batch_size": 256,
                    "recall": 0.5,
                    "rank": 256,
                    "recall_softness": 2.0,
                    "prior_std": 0.3,
                },
                permuted_mnist={"prior_std": 0.15},
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
        return RecallState(**fields(start), moments=no_moments(tasks, min(self.rank, width), width))

    def observe(self, key: Key[Array, ""], state: RecallState, task: Task, data: Data, fit: Fit) -> RecallState:  # type: ignore[override]
        check_index("task", task.index, len(state.moments.count))
        if self.forgetting:
            count = (1.0 - self.forgetting) * state.moments.count
            state = dataclasses.replace(state, moments=dataclasses.replace(state.moments, count=count))
        after = KroneckerVCL.observe(self, key, state, task, data, fit)
        return RecallState(**fields(after), moments=with_task(state.moments, task.index, task.head, data))

    def recollection(self, state: KroneckerState, bases: tuple[Basis, ...], head: int) -> Recalled | None:
        """What `loss` needs of the earlier tasks, and of earlier batches of the one whose head is trained."""
        if not isinstance(state, RecallState) or not bool(state.trained.any()) or not self.recall:
            return None
        return rotated_moments(state.moments, bases, state.mean, head)

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
        return loss + weight * moved(recall_key, rotated, held, held.recalled, number, self.recall_softness)


def no_moments(tasks: int, rank: int, width: int) -> Moments:
    """Room for the moments of tasks."""
    return Moments(
        jnp.zeros((tasks, width)), jnp.zeros((tasks, rank, width)), jnp.zeros(tasks), jnp.zeros(tasks, jnp.int32)
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
            place = recalled.moments.head[task]
            kept = recalled.heads[place]
            # Of earlier batches of the task that is learnt, the head may move, and is held back too.
            before, now = ((*w[:-1], jnp.where(place == recalled.head, w[-1], kept)) for w in (before, now))
        old, new = (rotated_logits(held.network, held.bases, w, x)[0] for w in (before, now))
        return mean_divergence(old, new, softness)

    return jnp.mean(jax.vmap(divergence)(inputs, tasks))


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


def places(counts: Float[Array, "k"], uniform: Float[Array, "n"]) -> Int[Array, "n"]:
    """Places drawn by their counts."""
    so_far = jnp.cumsum(counts)
    # Empty places of the state, at the end, must not change the draw: growing equals allocating up front.
    return jnp.minimum(jnp.searchsorted(so_far, uniform * so_far[-1], side="right"), len(counts) - 1)


@jax.jit
def rotated_moments(
    moments: Moments, bases: tuple[Basis, ...], mean: Weights, head: int | Int[Array, ""]
) -> Recalled:
    """Moments of `rotated_data`: with the 1 of the bias, in the eigenbasis, and a leverage of zero."""
    heads = None
    if mean.head.bias.shape[0] > 1:
        heads = jax.vmap(lambda head: bases[-1].rotate(rows_of(head)))(mean.head)
    if mean.network.reads_images:
        return Recalled(moments, heads, jnp.asarray(head))

    def turned(rows: Float[Array, "*n d"], one: float) -> Float[Array, "*n e"]:
        last = jnp.full((*rows.shape[:-1], 1), one)
        rotated = jnp.concatenate([rows, last], axis=-1) @ bases[0].inputs
        return jnp.concatenate([rotated, jnp.zeros_like(last)], axis=-1)

    # One task after the other: so rounding does not depend on how many there is room for.
    means, factors = jax.lax.map(
        lambda task: (turned(task[0], 1.0), turned(task[1], 0.0)), (moments.mean, moments.factor)
    )
    return Recalled(Moments(means, factors, moments.count, moments.head), heads, jnp.asarray(head))


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


def leading(centred: Float[Array, "n d"], size: Int[Array, ""], rank: int) -> Float[Array, "{rank} d"]:
    """The leading directions of a covariance, each as long as its standard deviation."""
    values, vectors = jnp.linalg.eigh(centred.T @ centred / size)
    return jnp.sqrt(jnp.maximum(values[-rank:], 0.0))[:, None] * vectors[:, -rank:].T


def shortened(rows: Float[Array, "n d"], rank: int) -> Float[Array, "{rank} d"]:
    """A factor of nearly the same FᵀF with fewer rows."""
    _, sizes, directions = jnp.linalg.svd(rows, full_matrices=False)
    return sizes[:rank, None] * directions[:rank]
