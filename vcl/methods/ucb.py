"""Uncertainty-guided continual learning with Bayesian networks: BLLL-REG (Ebrahimi et al., 2019; later UCB).

Bayes by backprop (Blundell et al., 2015): the posterior is q(w) = N(μ, σ²) with σ = log(1 + e^ρ), and every task
minimises, at weights w drawn from q once for the whole minibatch,

    -(1/N) Σ_n log p(y_n | x_n, w) + (κ/N) [log q(w) - log p(w)],   p(w_i) = π N(w_i; 0, σ₁²) + (1-π) N(w_i; 0, σ₂²).

The prior p is the same before every task. What protects the earlier ones is the rate of learning: from the second
task on that of each μ_i is multiplied by

    min((g σ_i)^p, 1),

with σ_i as the tasks so far left it, so that what is certain moves slowly (published: g = p = 1). The rate of ρ is
not scaled, and σ never becomes larger than σ₁. A head that has seen no data has nothing to protect, and learns at
the full rate.

Steps of plain gradient descent without the prior (κ = 0) let σ⁻² grow by the curvature of the likelihood: at a rate
r, E[∂/∂ρ_i] ≈ σ_i² h_i gives σ_i⁻² ← σ_i⁻² + 2 r h_i a step. It is then a sum over all tasks, as in the Laplace
approximation, which Adam's steps, of equal length for all weights, are not.
"""

import math
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Key, PyTree, Shaped

from vcl.core import Fit, Footprint, StreamSpec, Task, size
from vcl.errors import VclError
from vcl.gaussian import Gaussian, total
from vcl.methods.point import Settings, check_not_negative, check_positive, recipes
from vcl.networks import (
    MLP,
    cross_entropy,
    logits,
    logits_local,
    logits_weight_sampled,
    pixels,
    random,
    replace_head,
    select_head,
)
from vcl.training import OPTIMIZERS, Batch, Data, learning_rate, masked_mean


class Posterior(eqx.Module):
    """q(w) = N(μ, σ²), σ = log(1 + e^ρ). Published steps are steps of ρ, so ρ is what is kept."""

    mean: MLP
    rho: MLP

    def std(self) -> MLP:
        # jax.nn.softplus takes five times as long, for the sake of ρ above 88.
        return jax.tree.map(lambda r: jnp.log1p(jnp.exp(r)), self.rho)

    def gaussian(self) -> Gaussian:
        return Gaussian(self.mean, jax.tree.map(lambda s: 2.0 * jnp.log(s), self.std()))


class UCBState(eqx.Module):
    posterior: Posterior
    trained: Bool[Array, "heads"]
    """Which heads have seen data."""


@dataclass(frozen=True)
class UCB(Settings):
    """Uncertainty-guided learning (BLLL-REG): the surer a Bayesian network is of a weight, the slower it moves."""

    optimizer: Annotated[Literal["adam", "sgd"], "what makes steps of a gradient"] = "adam"
    guidance: Annotated[float, "g: from the second task on, the rate of each mean is multiplied by (g σ)^p"] = 1.0
    exponent: Annotated[float, "p, how much slower what is certain moves (published: 1)"] = 1.0
    spread_rate: Annotated[float, "the step size for ρ, which is not scaled"] = 0.001
    spread_schedule: Annotated[
        Literal["same", "opposite"], "whether the rate of ρ goes as that of the means, or rises as that one falls"
    ] = "same"
    draws: Annotated[
        Literal["weights", "activations"],
        "drawn in training: weights, for a minibatch (as published), or what they add up to, for each example",
    ] = "weights"
    kl_weight: Annotated[float, "κ, the weight of log q(w) - log p(w)"] = 1.0
    prior_mix: Annotated[float, "π, the share of the prior's wide part"] = 0.25
    prior_std: Annotated[
        float, "σ₁, the standard deviation of the prior's wide part; no σ of a weight is larger"
    ] = 1.0
    narrow_std: Annotated[float, "σ₂, the standard deviation of the prior's narrow part"] = 0.0025
    init_std: Annotated[float, "σ of every weight before any data"] = 0.05
    train_samples: Annotated[int, "networks drawn for each minibatch while training"] = 1
    test_samples: Annotated[int, "Monte-Carlo samples of the predictive distribution"] = 10

    recipes: ClassVar[dict[str, dict[str, dict[str, Any]]]] = recipes(
        split={"guidance": 1.0},
        permuted={
            "batch_size": 128,
            "learning_rate": 0.3,
            "schedule": "cosine",
            "optimizer": "sgd",
            "guidance": 24.0,
            "exponent": 3.0,
            "spread_rate": 450.0,
            "spread_schedule": "opposite",
            "draws": "activations",
            "kl_weight": 0.0,
            "prior_std": 0.05,
        },
    )

    def __post_init__(self) -> None:
        Settings.__post_init__(self)
        check_positive(self, "train_samples", "test_samples", "guidance", "exponent")
        check_positive(self, "prior_std", "narrow_std", "init_std")
        check_not_negative(self, "spread_rate", "kl_weight")
        if not 0 < self.prior_mix < 1:
            raise VclError(f"--prior-mix must be above 0 and below 1, but it is {self.prior_mix}.")
        if self.narrow_std > self.prior_std:
            raise VclError(
                f"--narrow-std must not be above --prior-std, but they are {self.narrow_std} and {self.prior_std}. "
                "Give the wider part of the prior as --prior-std."
            )
        if self.init_std > self.prior_std:
            raise VclError(
                f"--init-std must not be above --prior-std, but they are {self.init_std} and {self.prior_std}: "
                "no weight is less certain than the prior."
            )
        if self.spread_schedule == "opposite" and self.schedule == "constant":
            raise VclError(
                "--spread-schedule opposite lets the rate of ρ rise as that of the means falls; with "
                "--schedule constant σ would never be learnt. Choose --schedule cosine or --spread-schedule same."
            )

    def init(self, key: Key[Array, ""], spec: StreamSpec) -> UCBState:
        mean = random(key, self.hidden, spec)
        rho = jax.tree.map(lambda a: jnp.full_like(a, rho_of(self.init_std)), mean)
        return UCBState(Posterior(mean, rho), jnp.zeros(spec.num_heads, bool))

    def observe(self, key: Key[Array, ""], state: UCBState, task: Task, data: Data, fit: Fit) -> UCBState:
        start = select_head(state.posterior, task.head)
        rates = self.rates(start, state.trained.any(), state.trained[task.head])
        posterior = fit(
            key, "train", GuidedStep(self), start, rates, data, epochs=self.epochs, batch_size=self.batch_size
        )
        return UCBState(replace_head(state.posterior, task.head, posterior), state.trained.at[task.head].set(True))

    def readout(self, key: Key[Array, ""], state: UCBState, task: Task, fit: Fit) -> Posterior:
        return select_head(state.posterior, task.head)

    def predict(self, key: Key[Array, ""], params: Posterior, inputs: Shaped[Array, "n d"]) -> Float[Array, "s n c"]:
        """log p(y | x, w_s) for w_s ~ q; their average over s is the predictive distribution."""
        outputs = logits_weight_sampled(key, params.gaussian(), pixels(inputs), self.test_samples)
        return jax.nn.log_softmax(outputs)

    def footprint(self, state: UCBState) -> Footprint:
        """Every weight has a mean and a spread."""
        return Footprint(size(state.posterior))

    def rates(self, start: Posterior, body_trained: Bool[Array, ""], head_trained: Bool[Array, ""]) -> MLP:
        """What multiplies the learning rate of each mean: (g σ)^p where there is something to protect, else 1."""
        rates = jax.tree.map(lambda s: jnp.minimum((self.guidance * s) ** self.exponent, 1.0), start.std())
        return MLP(
            jax.tree.map(lambda r: jnp.where(body_trained, r, 1.0), rates.body),
            jax.tree.map(lambda r: jnp.where(head_trained, r, 1.0), rates.head),
        )

    def loss(self, key: Key[Array, ""], posterior: Posterior, batch: Batch) -> Float[Array, ""]:
        """-(1/N) log likelihood + (κ/N) [log q(w) - log p(w)], at w ~ q."""
        inputs = pixels(batch.inputs)
        for_weights, for_activations = jax.random.split(key)
        drawn, log_q = jax.vmap(lambda k: draw(k, posterior))(jax.random.split(for_weights, self.train_samples))
        if self.draws == "weights":
            outputs = jax.vmap(lambda weights: logits(weights, inputs))(drawn)
        else:
            outputs = logits_local(for_activations, posterior.gaussian(), inputs, self.train_samples)
        unlikelihood = masked_mean(cross_entropy(outputs, batch.labels), batch.mask)
        if not self.kl_weight:
            return unlikelihood
        divergence = jnp.mean(log_q - jax.vmap(self.log_prior)(drawn))
        return unlikelihood + self.kl_weight * divergence / batch.size

    def log_prior(self, weights: PyTree[Float[Array, "..."]]) -> Float[Array, ""]:
        """log p(w) = Σ_i log [π N(w_i; 0, σ₁²) + (1-π) N(w_i; 0, σ₂²)]."""
        wide, narrow = self.prior_std, self.narrow_std
        odds = (1.0 - self.prior_mix) / self.prior_mix * wide / narrow
        # The narrow part relative to the wide one, which is never less than its far tail: nothing overflows.
        sharper = 0.5 * (1.0 / narrow**2 - 1.0 / wide**2)
        constant = math.log(self.prior_mix / (wide * math.sqrt(2.0 * math.pi)))
        return total(
            lambda w: constant - 0.5 * (w / wide) ** 2 + jnp.log1p(odds * jnp.exp(-sharper * w**2)), weights
        )


@dataclass(frozen=True)
class GuidedStep:
    """Descent on the learner's loss, every mean at a rate of its own: `args` are what multiplies the common one."""

    learner: UCB

    def init(self, params: Posterior) -> PyTree:
        return params, OPTIMIZERS[self.learner.optimizer].init(params)

    def params(self, carry: PyTree) -> Posterior:
        return carry[0]

    def __call__(
        self, key: Key[Array, ""], carry: PyTree, args: MLP, batch: Batch, progress: Float[Array, ""]
    ) -> tuple[PyTree, Float[Array, ""]]:
        learner, (posterior, moments) = self.learner, carry
        objective, gradient = jax.value_and_grad(learner.loss, argnums=1)(key, posterior, batch)
        # Adam makes all directions equally long, so the rates must come after it.
        along, moments = OPTIMIZERS[learner.optimizer].update(gradient, moments)
        factor = learning_rate(learner.schedule, progress)
        mean_rate = factor * learner.learning_rate
        rho_rate = (factor if learner.spread_schedule == "same" else 1.0 - factor) * learner.spread_rate
        widest = rho_of(learner.prior_std)
        mean = jax.tree.map(lambda m, d, r: m - mean_rate * r * d, posterior.mean, along.mean, args)
        rho = jax.tree.map(lambda p, d: jnp.minimum(p - rho_rate * d, widest), posterior.rho, along.rho)
        return (Posterior(mean, rho), moments), objective


def rho_of(std: float) -> float:
    """ρ where log(1 + e^ρ) = σ."""
    return std + math.log(-math.expm1(-std))


def draw(key: Key[Array, ""], q: Posterior) -> tuple[MLP, Float[Array, ""]]:
    """w = μ + σ ε, ε ~ N(0, 1), and log q(w) = -Σ_i [½ ε² + log σ + ½ log 2π]."""
    means, structure = jax.tree.flatten(q.mean)
    keys = jax.tree.unflatten(structure, list(jax.random.split(key, len(means))))
    std = q.std()
    noise = jax.tree.map(lambda k, m: jax.random.normal(k, m.shape, m.dtype), keys, q.mean)
    weights = jax.tree.map(lambda m, s, e: m + s * e, q.mean, std, noise)
    return weights, total(lambda s, e: -0.5 * e**2 - jnp.log(s) - 0.5 * math.log(2.0 * math.pi), std, noise)
