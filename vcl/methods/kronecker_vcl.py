"""VCL with a structured posterior: a matrix normal for the weights of each layer.

Every task maximises equation 1 of the paper, over Gaussians whose precision is Kronecker-factored: that of the prior
plus the curvature of all data so far, Λ_t = Λ_{t-1} + N E_q[A_t ⊗ G_t], projected to one pair (A, G) for each layer.
For the mean M of a layer and its change D = M - M_{t-1}, task t minimises

    E_q[-log p(y | x, W)] + (1/2N) [ λ tr(Dᵀ A D G) + δ |D|² ],      q = MN(M, β U, V),

where U ⊗ V is the inverse of the damped precision (A' + π√δ I) ⊗ (G' + √δ/π I), A' ⊗ G' that of the earlier pair and
the task's own, and δ the precision of the first prior. λ and β are those of GVCL (Loo, Swaroop & Turner, 2020):
λ = β = 1 is Bayes' rule, β → 0 Kronecker-factored Laplace, λ = 0 fine-tuning under noise.

The curvature of a task is expected around the new mean, either with the task's own spread, as the fixed point of the
recursion has it, or with that of the earlier posterior, in the first task the prior's.

The expectation samples pre-activations, independently for each example: h M + √(β hᵀ U h) V^½ ε. Adam works in the
eigenbasis of the earlier pair. The state holds a mean and one pair for each layer, whatever the number of tasks;
heads have a pair each.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Key, PyTree, Shaped

from vcl import memory
from vcl.core import Fit, Footprint, StreamSpec, Task, size
from vcl.curvature import kronecker_factors
from vcl.memory import Memory
from vcl.methods.base.eigenbasis import (
    Basis,
    Rotated,
    bases_of,
    pull,
    rotate,
    rotate_back,
    rotated_data,
    rotated_logits,
    with_leverage,
)
from vcl.methods.base.settings import (
    Recipes,
    Settings,
    check_fraction,
    check_not_negative,
    check_positive,
    family_settings,
)
from vcl.nets import Weights, cross_entropy, pixels, random_like, replace_head, select_head, zeros
from vcl.noise import Generator
from vcl.posteriors.kronecker import (
    Kronecker,
    KroneckerFactored,
    MatrixNormal,
    Spread,
    empty_pairs,
    logits_kronecker,
    merge,
    nearest,
    spread_of,
    with_one,
)
from vcl.posteriors.mean_field import Gaussian, Scalar
from vcl.training import Adam, Batch, Data, masked_mean

Pairs = tuple[Kronecker, ...]
MERGES = {"nearest": nearest, "sums": merge}
BAYES = {"strength": 1.0, "temperature": 1.0, "curvature_under": "own"}


class Belief(NamedTuple):
    """A posterior: its mean, and the sum of the curvatures of all data so far, for each layer."""

    mean: Weights
    pairs: Pairs


class KroneckerState(eqx.Module):
    mean: Weights
    """Zero before any data, as under the prior."""
    pairs: Pairs
    """N · E[a aᵀ] and E[g gᵀ] of each layer, merged over all data so far; those of the head stacked over heads."""
    trained: Bool[Array, "heads"]
    """Which heads have seen data."""
    coreset: Memory
    """The examples set aside."""


class Held(NamedTuple):
    """What stays fixed in one round of a task."""

    bases: tuple[Basis, ...]
    centre: Rotated
    """The mean of the earlier posterior, rotated."""
    spreads: tuple[Spread, ...]
    network: Weights
    """Tells the network; its numbers are not used."""
    recalled: PyTree = None
    """What a variant recalls of earlier tasks."""


@dataclass(frozen=True)
class Round(Adam):
    """One of several fits that share Adam's moments and one learning-rate schedule."""

    number: int = 0
    rounds: int = 1

    def init(self, params: PyTree) -> PyTree:
        return params

    def params(self, carry: PyTree) -> PyTree:
        return carry

    def __call__(
        self, key: Key[Array, ""], carry: PyTree, args: PyTree, batch: Batch, progress: Float[Array, ""]
    ) -> tuple[PyTree, Float[Array, ""]]:
        return Adam.__call__(self, key, carry, args, batch, (self.number + progress) / self.rounds)


@dataclass(frozen=True)
class KroneckerVCL(Settings):
    """VCL with Kronecker-factored posteriors, with or without a coreset.

    Examples
    --------
    >>> import vcl
    >>> stream = vcl.build("split-digits", vcl.StreamOptions(num_tasks=2), seed=0)
    >>> result = vcl.learn(KroneckerVCL(hidden=(20,), batch_size=32), stream)
    >>> result["average_accuracy"] > 0.9
    True
    """

    epochs: Annotated[int, "passes over each task's data"] = 15
    learning_rate: Annotated[float, "Adam's step size at the start of each task"] = 0.005
    schedule: Annotated[Literal["constant", "cosine", "plateau"], "learning-rate schedule within a task"] = "cosine"
    strength: Annotated[float, "λ, the weight of the earlier posterior's curvature (1: Bayes' rule)"] = 3.0
    temperature: Annotated[float, "β, the posterior's variance relative to Bayes' rule (0: Laplace)"] = 0.01
    prior_std: Annotated[float, "standard deviation of the initial prior N(0, std²)"] = 1.0
    rounds: Annotated[int, "how often the posterior's covariance is brought up to date within a task"] = 2
    train_samples: Annotated[int, "Monte-Carlo samples of the likelihood term while training"] = 1
    test_samples: Annotated[int, "Monte-Carlo samples of the predictive distribution"] = 20
    noise: Annotated[
        Generator, "generator of the noise: a hash of places, or JAX's threefry, five times as expensive"
    ] = "hash"
    fisher: Annotated[
        Literal["exact", "sampled", "empirical"], "labels from the model (all, or one drawn), or the true ones"
    ] = "exact"
    merging: Annotated[
        Literal["nearest", "sums"],
        "one pair for the sum of two: the nearest in the Frobenius norm, or the product of the factors' sums",
    ] = "nearest"
    curvature_under: Annotated[
        Literal["earlier", "own"],
        "whose spread a task's curvature is expected under: the earlier posterior's or, as in Bayes' rule, its own",
    ] = "earlier"
    forgetting: Annotated[float, "ε, how much of the earlier posterior is given up before each batch of data"] = 0.0
    coreset: Annotated[int, "examples of each task set aside, and trained on just before testing"] = 0
    coreset_selection: Annotated[Literal["random", "k-center"], "how the coreset is chosen"] = "random"
    coreset_epochs: Annotated[int, "passes over the coreset before testing (0: as many as epochs)"] = 0

    recipes: ClassVar[Recipes] = {
        # Chosen on validation data: docs/recipes.md.
        "fast": {
            **family_settings(
                split={"epochs": 15, "temperature": 0.01},
                permuted={"epochs": 10, "batch_size": 512, "strength": 1.0, "temperature": 0.16},
                permuted_mnist={"prior_std": 0.15},
            ),
            # On Covertype by area: docs/practitioners.md.
            "real": {"hidden": (100, 100), "epochs": 20, "batch_size": 256, "strength": 10.0, "temperature": 0.03},
        },
        # Bayes' rule, equation 1 of the paper with a matrix normal.
        "published": family_settings(
            split={"epochs": 15, **BAYES},
            permuted={"epochs": 10, "batch_size": 512, **BAYES},
        ),
    }

    def __post_init__(self) -> None:
        Settings.__post_init__(self)
        check_positive(self, "prior_std", "rounds", "train_samples", "test_samples")
        check_not_negative(self, "strength", "temperature", "coreset", "coreset_epochs")
        check_fraction(self, "forgetting")

    @property
    def family(self) -> KroneckerFactored:
        """The posterior family, with its noise."""
        return KroneckerFactored(self.noise)

    @property
    def prior_precision(self) -> float:
        """δ."""
        return self.prior_std**-2.0

    def init(self, key: Key[Array, ""], spec: StreamSpec) -> KroneckerState:
        """q_0: the prior N(0, prior_std²) on every weight and bias."""
        memory.check_size(self.coreset, spec)
        mean = zeros(self.architecture, spec)
        pairs = *(empty_pairs(layer) for layer in mean.body), empty_pairs(mean.head, spec.num_heads)
        return KroneckerState(mean, pairs, jnp.zeros(spec.num_heads, bool), memory.empty(spec, self.coreset))

    def observe(
        self, key: Key[Array, ""], state: KroneckerState, task: Task, data: Data, fit: Fit
    ) -> KroneckerState:
        coreset_key, start_key, fit_key = jax.random.split(key, 3)
        coreset, data = memory.set_aside(coreset_key, state.coreset, task.index, data, self.coreset_selection)
        prior = believed(state, task.head)
        first = not bool(state.trained.any())
        if self.forgetting and not first:
            prior = partly_forgotten(prior, self.prior_precision, self.forgetting)
        start = self.starting_point(start_key, state, task)
        mean, pairs = self.update(
            fit_key, "train", start, prior, data, fit, self.epochs, warm=not first, state=state, head=task.head
        )
        return KroneckerState(
            replace_head(state.mean, task.head, mean),
            (*pairs[:-1], jax.tree.map(lambda a, b: a.at[task.head].set(b), state.pairs[-1], pairs[-1])),
            state.trained.at[task.head].set(True),
            coreset,
        )

    def readout(self, key: Key[Array, ""], state: KroneckerState, task: Task, fit: Fit) -> MatrixNormal:
        """The posterior, refined on the coreset: per task where each has its head, merged where all share one."""
        belief = believed(state, task.head)
        data = memory.for_readout(state.coreset, state.trained.shape[0], task.index)
        if int(data.size) > 0:
            epochs = self.coreset_epochs or self.epochs
            key, name = jax.random.fold_in(key, task.head), f"coreset-{task.head + 1}"
            belief = self.update(
                key, name, belief.mean, belief, data, fit, epochs, warm=True, state=state, head=task.head
            )
        return self.posterior(belief)

    def predict(
        self, key: Key[Array, ""], params: MatrixNormal, inputs: Shaped[Array, "n d"]
    ) -> Float[Array, "s n c"]:
        """log p(y | x, W_s) for W_s ~ q; their average over s is the predictive distribution."""
        return jax.nn.log_softmax(logits_kronecker(key, params, pixels(inputs), self.test_samples, self.family))

    def footprint(self, state: KroneckerState) -> Footprint:
        """A mean for every weight, and two factors for every layer."""
        return Footprint(size((state.mean, state.pairs)), int(state.coreset.filled.sum()))

    def update(
        self,
        key: Key[Array, ""],
        name: str,
        start: Weights,
        prior: Belief,
        data: Data,
        fit: Fit,
        epochs: int,
        *,
        warm: bool,
        state: KroneckerState,
        head: int,
    ) -> Belief:
        """Equation 1. Not `warm`: the first round has no noise, since nothing is known yet of its size."""
        bases = bases_of(prior.pairs)
        centre = rotate(bases, prior.mean)
        adam = Adam(self.loss, self.learning_rate, self.schedule)
        carry, weights = adam.init(rotate(bases, start)), start
        rotated = rotated_data(bases, prior.mean, data)
        first = inputs_squared(prior.mean, data)
        recalled = self.recollection(state, bases, head)
        parts, pairs = shares(epochs, self.rounds), prior.pairs
        for number, share in enumerate(parts):
            pairs = self.with_curvature(
                jax.random.fold_in(key, 2 * number), Belief(weights, pairs), prior, data, first, noisy=warm
            )
            spreads = self.posterior(Belief(weights, pairs), noisy=warm).spreads
            rotated = with_leverage(rotated, bases, prior.mean, spreads[0])
            step = Round(self.loss, self.learning_rate, self.schedule, number=number, rounds=len(parts))
            carry = fit(
                jax.random.fold_in(key, 2 * number + 1),
                f"{name}-{number + 1}",
                step,
                carry,
                Held(bases, centre, spreads, prior.mean, recalled),
                rotated,
                epochs=share,
                batch_size=self.batch_size,
            )
            weights, warm = rotate_back(bases, carry[0], prior.mean), True
        pairs = self.with_curvature(
            jax.random.fold_in(key, 2 * self.rounds), Belief(weights, pairs), prior, data, first, noisy=True
        )
        return Belief(weights, pairs)

    def recollection(self, state: KroneckerState, bases: tuple[Basis, ...], head: int) -> PyTree:
        """Nothing: the earlier posterior says all. `vcl.methods.variants.kronecker_vcl_recall` recalls more."""
        return None

    def loss(self, key: Key[Array, ""], rotated: Rotated, held: Held, batch: Batch) -> Float[Array, ""]:
        """-(1/N) E_q[log likelihood] + (1/2N) [λ tr(Dᵀ A D G) + δ |D|²], estimated on a minibatch."""
        outputs = rotated_logits(
            held.network,
            held.bases,
            rotated,
            pixels(batch.inputs),
            held.spreads,
            key,
            self.train_samples,
            self.family,
        )
        held_back = pull(held.bases, rotated, held.centre, self.strength, self.prior_precision)
        return masked_mean(cross_entropy(outputs, batch.labels), batch.mask) + held_back / batch.size

    def with_curvature(
        self,
        key: Key[Array, ""],
        belief: Belief,
        prior: Belief,
        data: Data,
        first: Float[Array, "i i"] | None,
        *,
        noisy: bool,
    ) -> Pairs:
        """The earlier pairs merged with those of the task, expected around what is believed of it so far."""
        spread = belief.pairs if self.curvature_under == "own" else prior.pairs
        q = self.posterior(Belief(belief.mean, spread), noisy=noisy) if self.temperature else None
        factors = kronecker_factors(key, belief.mean, data, self.fisher, q=q, first=first, family=self.family)
        return tuple(
            MERGES[self.merging](old, Kronecker(data.size * new.inputs, new.outputs))
            for old, new in zip(prior.pairs, factors, strict=True)
        )

    def posterior(self, belief: Belief, *, noisy: bool = True) -> MatrixNormal:
        """q = MN(M, β U, V)."""
        precision, temperature = jnp.float32(self.prior_precision), jnp.float32(self.temperature * noisy)
        return _posterior(belief.mean, belief.pairs, precision, temperature)

    def marginals(self, state: KroneckerState) -> Gaussian:
        """The mean and the variance of every weight by itself, for all heads: what analysis looks at."""
        heads = [self.family.marginals(self.posterior(believed(state, head))) for head in range(len(state.trained))]
        log_vars = [q.log_var.head for q in heads]
        head = jax.tree.map(lambda *arrays: jnp.stack(arrays), *log_vars)
        return Gaussian(state.mean, dataclasses.replace(heads[0].log_var, head=head))

    def starting_point(self, key: Key[Array, ""], state: KroneckerState, task: Task) -> Weights:
        """The previous mean; random where nothing was learnt yet."""
        mean = select_head(state.mean, task.head)
        fresh = random_like(key, mean)
        if not bool(state.trained.any()):
            return fresh
        return mean if bool(state.trained[task.head]) else dataclasses.replace(mean, head=fresh.head)


def believed(state: KroneckerState, head: int) -> Belief:
    """The posterior over the body and one head."""
    return Belief(
        select_head(state.mean, head), (*state.pairs[:-1], jax.tree.map(lambda a: a[head], state.pairs[-1]))
    )


@jax.jit
def _posterior(
    mean: Weights, pairs: Pairs, prior_precision: Float[Array, ""], temperature: Float[Array, ""]
) -> MatrixNormal:
    return MatrixNormal(mean, tuple(spread_of(pair, prior_precision, temperature) for pair in pairs))


@jax.jit
def inputs_squared(weights: Weights, data: Data) -> Float[Array, "i i"] | None:
    """E[a aᵀ] of the first layer, the same for all weights; None for images, of which it gathers patches."""
    if weights.network.reads_images:
        return None
    real = (jnp.arange(data.capacity) < data.size)[:, None]
    inputs = with_one(pixels(data.inputs)) * real
    return inputs.T @ inputs / data.size


@jax.jit
def partly_forgotten(belief: Belief, prior_precision: Scalar, forgetting: Scalar) -> Belief:
    """q^(1-ε) p_0^ε (Kurle et al., 2020): precisions mix, and means by their precisions.

    Λ = (1-ε) A ⊗ G + δ I, and Λ M' = (1-ε) (A ⊗ G + δ I) M: one number after the other in the eigenbasis.
    """
    bases = bases_of(belief.pairs)
    kept = 1.0 - forgetting
    means = []
    for basis, layer in zip(bases, rotate(bases, belief.mean), strict=True):
        curvature = basis.curvature()
        means.append(kept * (curvature + prior_precision) / (kept * curvature + prior_precision) * layer)
    pairs = tuple(Kronecker(kept * pair.inputs, pair.outputs) for pair in belief.pairs)
    return Belief(rotate_back(bases, tuple(means), belief.mean), pairs)


def shares(epochs: int, rounds: int) -> Sequence[int]:
    """The epochs of each round, as equal as they can be; rounds without any are left out."""
    return [n for i in range(rounds) if (n := epochs * (i + 1) // rounds - epochs * i // rounds)]
