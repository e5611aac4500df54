"""Online Laplace approximation with Kronecker-factored curvature (Ritter, Botev & Barber, 2018).

The posterior after each task is a Gaussian around the weights W* with which the task ended; its precision grows by
the task's curvature. So task t minimises

    -(1/N) Σ_n log p(y_n | x_n, W) + (λ/2) [ Σ_{k<t} Σ_layers tr(ΔWᵀ A_k ΔW G_k) + δ |ΔW|² ],   ΔW = W - W*,

with A_k = E[a aᵀ] of a layer's input and G_k = E[g gᵀ] of the gradient at its pre-activation. Unlike a diagonal,
they capture interactions between the weights of a layer. λ = 1 is Bayes' rule for tasks of
equal size. δ is the prior's precision over N, and W* = 0 before the first task.

A sum of Kronecker products is not itself a Kronecker product. Either the tasks' pairs are stored separately, which
is exact, or they are merged into a single one, c (A + π A_t) ⊗ (G + G_t / π) with
π = √(tr A · tr G_t / (tr A_t · tr G)) and the c that preserves the trace of the sum: then neither cost nor memory
grows with the tasks.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from vcl.core import Fit, StreamSpec, Task, check_index
from vcl.curvature import diagonal_fisher, kronecker_factors
from vcl.errors import VclError
from vcl.methods.base.eigenbasis import (
    Basis,
    Rotated,
    bases_of,
    pull,
    rotate,
    rotate_back,
    rotated_data,
    rotated_logits,
)
from vcl.methods.base.point import PointLearner, negative_log_likelihood
from vcl.methods.base.settings import Recipes, check_not_negative, family_settings
from vcl.nets import Affine, Weights, cross_entropy, pixels, random, replace_head, select_head
from vcl.posteriors.kronecker import Kronecker, affine_of, empty_pairs, merge, rows_of
from vcl.training import Adam, Batch, Data, masked_mean

Curvature = tuple[Kronecker, ...] | Weights
"""Pairs of each layer, stacked, the head's last; or the diagonal, in the places of the weights."""


class LaplaceState(eqx.Module):
    network: Weights
    centre: Weights
    """The posterior's mean: zero before any data, then the weights after the last task."""
    curvature: Curvature
    """Pairs are stacked over tasks (one if they are merged), those of the head also over heads before that."""


@dataclass(frozen=True)
class Laplace(PointLearner):
    """Online Laplace: a quadratic penalty by the Kronecker-factored curvature of all earlier tasks.

    Examples
    --------
    >>> Laplace(strength=3.0, pairs="separate").pairs
    'separate'
    """

    strength: Annotated[float, "λ, the weight of the penalty (1: Bayes' rule, 0: fine-tuning)"] = 1.0
    curvature: Annotated[Literal["kronecker", "diagonal"], "approximation of the curvature"] = "kronecker"
    pairs: Annotated[Literal["separate", "merged"], "a pair of Kronecker factors for each task, or one"] = "merged"
    fisher: Annotated[
        Literal["exact", "sampled", "empirical"], "labels from the model (all, or one drawn), or the true ones"
    ] = "exact"
    prior_precision: Annotated[float, "δ, the precision of the prior around zero, divided by N"] = 0.0
    coordinates: Annotated[
        Literal["weights", "eigenbasis"],
        "what Adam works on: the weights, or those in the merged curvature's eigenbasis",
    ] = "weights"

    recipes: ClassVar[Recipes] = {
        "fast": family_settings(
            split={"strength": 10.0},
            permuted={
                "strength": 3.0,
                "learning_rate": 0.003,
                "schedule": "cosine",
                "epochs": 20,
                "batch_size": 1024,
            },
            split_mnist={"strength": 39.0, "learning_rate": 0.0066},
            permuted_mnist={
                "coordinates": "eigenbasis",
                "learning_rate": 0.005,
                "epochs": 10,
                "batch_size": 512,
                "prior_precision": 0.0003,
            },
        ),
        # Bayes' rule with the exact sum of the tasks' curvatures. Epochs, batch size and rate are ours.
        "published": family_settings(
            split={"strength": 1.0, "pairs": "separate", "epochs": 20},
            permuted={"strength": 1.0, "pairs": "separate", "epochs": 20},
        ),
    }

    def __post_init__(self) -> None:
        PointLearner.__post_init__(self)
        check_not_negative(self, "strength", "prior_precision")
        if self.coordinates == "eigenbasis" and (self.curvature, self.pairs) != ("kronecker", "merged"):
            raise VclError(
                "--coordinates eigenbasis needs a curvature that is one pair of Kronecker factors, but it is "
                f"{self.curvature} with {self.pairs} pairs. Use --coordinates weights, or --curvature kronecker "
                "--pairs merged."
            )

    def init(self, key: Key[Array, ""], spec: StreamSpec) -> LaplaceState:
        network = random(key, self.architecture, spec)
        nothing = jax.tree.map(jnp.zeros_like, network)
        curvature = nothing if self.curvature == "diagonal" else self.no_pairs(network, spec)
        return LaplaceState(network, nothing, curvature)

    def observe(self, key: Key[Array, ""], state: LaplaceState, task: Task, data: Data, fit: Fit) -> LaplaceState:
        start, centre = select_head((state.network, state.centre), task.head)
        curvature = select_curvature(state.curvature, task.head)
        if not isinstance(curvature, Weights) and self.pairs == "separate":
            check_index("task", task.index, len(curvature[0].inputs))
        sizes = {"epochs": self.epochs, "batch_size": self.batch_size}
        if self.coordinates == "eigenbasis":
            bases = bases_of([Kronecker(pair.inputs[0], pair.outputs[0]) for pair in pairs_of(curvature)])
            step = Adam(self.rotated_loss, self.learning_rate, self.schedule)
            args = bases, rotate(bases, centre), centre
            turned = fit(key, "train", step, rotate(bases, start), args, rotated_data(bases, centre, data), **sizes)
            network = rotate_back(bases, turned, centre)
        else:
            step = Adam(self.loss, self.learning_rate, self.schedule)
            network = fit(key, "train", step, start, (centre, curvature), data, **sizes)
        if isinstance(curvature, Weights):
            fisher = diagonal_fisher(jax.random.fold_in(key, 1), network, data, self.fisher)
            curvature = jax.tree.map(jnp.add, curvature, fisher)
        else:
            new = kronecker_factors(jax.random.fold_in(key, 1), network, data, self.fisher)
            curvature = add_pairs(curvature, new, task.index if self.pairs == "separate" else 0)
        return LaplaceState(
            replace_head(state.network, task.head, network),
            replace_head(state.centre, task.head, network),
            replace_curvature(state.curvature, task.head, curvature),
        )

    def readout(self, key: Key[Array, ""], state: LaplaceState, task: Task, fit: Fit) -> Weights:
        return select_head(state.network, task.head)

    def loss(
        self, key: Key[Array, ""], network: Weights, held: tuple[Weights, Curvature], batch: Batch
    ) -> Float[Array, ""]:
        """-(1/N) log likelihood + (λ/2) ΔWᵀ (Λ + δ) ΔW."""
        centre, curvature = held
        change = jax.tree.map(jnp.subtract, network, centre)
        form = curved_norm(change, curvature) + self.prior_precision * inner(change, change)
        return negative_log_likelihood(network, batch) + 0.5 * self.strength * form

    def rotated_loss(
        self, key: Key[Array, ""], rotated: Rotated, held: tuple[tuple[Basis, ...], Rotated, Weights], batch: Batch
    ) -> Float[Array, ""]:
        """The same loss in the eigenbasis of the merged curvature."""
        bases, centre, network = held
        outputs = rotated_logits(network, bases, rotated, pixels(batch.inputs))
        nll = masked_mean(cross_entropy(outputs, batch.labels), batch.mask)
        return nll + self.strength * pull(bases, rotated, centre, 1.0, self.prior_precision)

    def no_pairs(self, network: Weights, spec: StreamSpec) -> tuple[Kronecker, ...]:
        """Empty pairs. A head that belongs to one task needs a single pair."""
        for_body = 1 if self.pairs == "merged" else spec.num_tasks
        for_head = for_body if spec.num_heads == 1 else 1
        body = tuple(empty_pairs(layer, for_body) for layer in network.body)
        return *body, empty_pairs(network.head, spec.num_heads, for_head)


def pairs_of(curvature: Curvature) -> tuple[Kronecker, ...]:
    """The pairs of a curvature that is not diagonal."""
    if isinstance(curvature, Weights):
        raise TypeError("A diagonal curvature has no pairs.")
    return curvature


def inner(a: Weights, b: Weights) -> Float[Array, ""]:
    """Σ_i a_i b_i."""
    return jnp.sum(jnp.stack(jax.tree.leaves(jax.tree.map(lambda x, y: jnp.sum(x * y), a, b))))


def curved_norm(change: Weights, curvature: Curvature) -> Float[Array, ""]:
    """ΔWᵀ Λ ΔW, with its gradient 2 Λ ΔW at no further cost: Λ is symmetric, so one product serves both."""
    pushed = jax.lax.stop_gradient(multiply(curvature, change))
    norm = inner(change, pushed)
    return 2.0 * norm - jax.lax.stop_gradient(norm)


def multiply(curvature: Curvature, change: Weights) -> Weights:
    """Λ ΔW."""
    if isinstance(curvature, Weights):
        return jax.tree.map(jnp.multiply, curvature, change)
    layers = [multiply_layer(pairs, layer) for pairs, layer in zip(curvature, change.layers, strict=True)]
    return change.with_layers(layers)


def multiply_layer(pairs: Kronecker, change: Affine) -> Affine:
    """Σ_k A_k ΔW G_k, over the pairs that there are."""
    rows = rows_of(change)

    def add(k: Int[Array, ""], total: Float[Array, "i o"]) -> Float[Array, "i o"]:
        return total + pairs.inputs[k] @ (rows @ pairs.outputs[k])

    total = jax.lax.fori_loop(0, num_filled(pairs), add, jnp.zeros_like(rows))
    return affine_of(total)


def num_filled(pairs: Kronecker) -> Int[Array, ""]:
    """One more than the last place that holds a pair. The input 1 of the bias marks it: A's last entry is 1."""
    taken = pairs.inputs[:, -1, -1] > 0
    return jnp.max(jnp.where(taken, jnp.arange(1, len(taken) + 1), 0))


@jax.jit
def add_pairs(
    pairs: tuple[Kronecker, ...], new: tuple[Kronecker, ...], place: int | Int[Array, ""]
) -> tuple[Kronecker, ...]:
    """Each layer's pair into its place; merged with what is there. A head of one task has but one place."""
    added = []
    for stack, one in zip(pairs, new, strict=True):
        at = jnp.minimum(place, len(stack.inputs) - 1)
        merged = merge(Kronecker(stack.inputs[at], stack.outputs[at]), one)
        added.append(jax.tree.map(lambda a, b, at=at: a.at[at].set(b), stack, merged))
    return tuple(added)


def select_curvature(curvature: Curvature, head: int) -> Curvature:
    if isinstance(curvature, Weights):
        return select_head(curvature, head)
    return *curvature[:-1], jax.tree.map(lambda a: a[head], curvature[-1])


def replace_curvature(curvature: Curvature, head: int, new: Curvature) -> Curvature:
    if isinstance(curvature, Weights) or isinstance(new, Weights):
        return replace_head(curvature, head, new)
    return *new[:-1], jax.tree.map(lambda a, b: a.at[head].set(b), curvature[-1], new[-1])
