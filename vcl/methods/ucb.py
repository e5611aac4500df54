"""Uncertainty-guided continual learning with Bayesian networks: BLLL-REG (Ebrahimi et al., 2019; later UCB).

Bayes by backprop (Blundell et al., 2015): the posterior is q(w) = N(μ, σ²) with σ = log(1 + e^ρ), and every task
minimises, at weights w drawn from q once for the whole minibatch,

    -(1/N) Σ_n log p(y_n | x_n, w) + (1/N) [log q(w) - log p(w)],   p(w_i) = π N(w_i; 0, σ₁²) + (1-π) N(w_i; 0, σ₂²).

The prior p is the same before every task. Earlier tasks are protected by the learning rate: from the second task on,
that of each μ_i is multiplied by σ_i as it was when the task began, so that certain weights move slowly. The rate of
ρ is not scaled. A new head has nothing to protect, and learns at the full rate.
"""

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Key, PyTree, Shaped

from vcl.core import Fit, Footprint, StreamSpec, Task, size
from vcl.errors import VclError
from vcl.methods.base.settings import Recipes, Settings, check_positive, family_settings
from vcl.nets import Weights, cross_entropy, logits, pixels, random, replace_head, select_head
from vcl.posteriors.mean_field import Gaussian, logits_weight_sampled, total
from vcl.training import OPTIMIZERS, Batch, Data, first_moments, learning_rate, masked_mean


class Posterior(eqx.Module):
    """q(w) = N(μ, σ²), σ = log(1 + e^ρ). The published algorithm updates ρ, so ρ is stored."""

    mean: Weights
    rho: Weights

    def std(self) -> Weights:
        # jax.nn.softplus takes five times as long, for the sake of ρ above 88.
        return jax.tree.map(lambda r: jnp.log1p(jnp.exp(r)), self.rho)

    def gaussian(self) -> Gaussian:
        return Gaussian(self.mean, jax.tree.map(lambda s: 2.0 * jnp.log(s), self.std()))


class UCBState(eqx.Module):
    posterior: Posterior
    trained: Bool[Array, "heads"]
    """Which heads have seen data."""


PUBLISHED = {
    "epochs": 200,
    "batch_size": 64,
    "optimizer": "sgd",
    "learning_rate": 0.032,
    "train_samples": 10,
    "init_std": 0.0486,
}


@dataclass(frozen=True)
class UCB(Settings):
    """Uncertainty-guided learning (UCB, BLLL-REG): learning rates in proportion to each weight's uncertainty.

    Examples
    --------
    >>> UCB(optimizer="sgd", train_samples=10).prior_mix
    0.25
    """

    optimizer: Annotated[Literal["adam", "sgd"], "the optimiser"] = "adam"
    prior_mix: Annotated[float, "π, the share of the prior's wide part"] = 0.25
    prior_std: Annotated[float, "σ₁, the standard deviation of the prior's wide part"] = 1.0
    narrow_std: Annotated[float, "σ₂, the standard deviation of the prior's narrow part"] = 0.0025
    init_std: Annotated[float, "σ of every weight before any data"] = 0.05
    train_samples: Annotated[int, "networks drawn for each minibatch while training"] = 1
    test_samples: Annotated[int, "Monte-Carlo samples of the predictive distribution"] = 10

    recipes: ClassVar[Recipes] = {
        "fast": family_settings(
            split={},
            permuted={},
            split_mnist={"learning_rate": 0.0041, "init_std": 0.013},
            permuted_mnist={"learning_rate": 0.0021, "init_std": 0.14},
        ),
        # SGD of 10 samples, batch 64, 200 epochs, ρ₀ = -3. The published code's rate of 0.01 is for a sum over the
        # minibatch that is weighted by 0.05: 0.032 for the mean.
        "published": family_settings(split=PUBLISHED, permuted=PUBLISHED),
    }

    def __post_init__(self) -> None:
        Settings.__post_init__(self)
        check_positive(self, "train_samples", "test_samples", "prior_std", "narrow_std", "init_std")
        if not 0 < self.prior_mix < 1:
            raise VclError(f"--prior-mix must be above 0 and below 1, but it is {self.prior_mix}.")
        if self.narrow_std > self.prior_std:
            raise VclError(
                f"--narrow-std must not be above --prior-std, but they are {self.narrow_std} and {self.prior_std}. "
                "Give the wider part of the prior as --prior-std."
            )

    def init(self, key: Key[Array, ""], spec: StreamSpec) -> UCBState:
        mean = random(key, self.architecture, spec)
        rho = jax.tree.map(lambda a: jnp.full_like(a, rho_of(self.init_std)), mean)
        return UCBState(Posterior(mean, rho), jnp.zeros(spec.num_heads, bool))

    def observe(self, key: Key[Array, ""], state: UCBState, task: Task, data: Data, fit: Fit) -> UCBState:
        start = select_head(state.posterior, task.head)
        rates = self.rates(start, *self.protected(state, task))
        posterior = fit(
            key, "train", GuidedStep(self), start, rates, data, epochs=self.epochs, batch_size=self.batch_size
        )
        return UCBState(replace_head(state.posterior, task.head, posterior), state.trained.at[task.head].set(True))

    def protected(self, state: UCBState, task: Task) -> tuple[Bool[Array, ""], Bool[Array, ""]]:
        """Whether earlier tasks have trained the body, and the task's head."""
        # A later batch of a task comes after that task's own training, from which it needs no protection.
        if len(state.trained) > 1:
            others = state.trained.at[task.head].set(False).any()
            return others, (task.batch == 0) & state.trained[task.head]
        # All tasks share the head: of a later batch of the first task, the state does not say whether others came.
        others = (task.batch == 0 or task.index > 0) & state.trained.any()
        return others, others

    def readout(self, key: Key[Array, ""], state: UCBState, task: Task, fit: Fit) -> Posterior:
        return select_head(state.posterior, task.head)

    def predict(self, key: Key[Array, ""], params: Posterior, inputs: Shaped[Array, "n d"]) -> Float[Array, "s n c"]:
        """log p(y | x, w_s) for w_s ~ q; their average over s is the predictive distribution."""
        outputs = logits_weight_sampled(key, params.gaussian(), pixels(inputs), self.test_samples)
        return jax.nn.log_softmax(outputs)

    def footprint(self, state: UCBState) -> Footprint:
        """Every weight has a mean and a spread."""
        return Footprint(size(state.posterior))

    def rates(self, start: Posterior, body_trained: Bool[Array, ""], head_trained: Bool[Array, ""]) -> Weights:
        """The factor on the learning rate of each mean: `rate` of σ where the weight was trained before, else 1."""
        rates = jax.tree.map(self.rate, start.std())
        return rates.with_layers(
            [
                *jax.tree.map(lambda r: jnp.where(body_trained, r, 1.0), rates.body),
                jax.tree.map(lambda r: jnp.where(head_trained, r, 1.0), rates.head),
            ]
        )

    def rate(self, std: Float[Array, "*s"]) -> Float[Array, "*s"]:
        """The factor on the learning rate of a mean: σ."""
        return std

    def loss(self, key: Key[Array, ""], posterior: Posterior, batch: Batch) -> Float[Array, ""]:
        """-(1/N) log likelihood + (1/N) [log q(w) - log p(w)], at w ~ q."""
        inputs = pixels(batch.inputs)
        drawn, log_q = jax.vmap(lambda k: draw(k, posterior))(jax.random.split(key, self.train_samples))
        outputs = jax.vmap(lambda weights: logits(weights, inputs))(drawn)
        divergence = jnp.mean(log_q - jax.vmap(self.log_prior)(drawn))
        return masked_mean(cross_entropy(outputs, batch.labels), batch.mask) + divergence / batch.size

    def step_rho(self, rho: Weights, direction: Weights, progress: Float[Array, ""]) -> Weights:
        """ρ after a step, at the common learning rate."""
        rate = self.learning_rate * learning_rate(self.schedule, progress)
        return jax.tree.map(lambda r, d: r - rate * d, rho, direction)

    def log_prior(self, weights: PyTree[Float[Array, "..."]]) -> Float[Array, ""]:
        """log p(w) = Σ_i log [π N(w_i; 0, σ₁²) + (1-π) N(w_i; 0, σ₂²)]."""
        wide, narrow = self.prior_std, self.narrow_std
        odds = (1.0 - self.prior_mix) / self.prior_mix * wide / narrow
        # Relative to the wide part, whose tail is the larger one, so that nothing overflows.
        sharper = 0.5 * (1.0 / narrow**2 - 1.0 / wide**2)
        constant = math.log(self.prior_mix / (wide * math.sqrt(2.0 * math.pi)))
        return total(
            lambda w: constant - 0.5 * (w / wide) ** 2 + jnp.log1p(odds * jnp.exp(-sharper * w**2)), weights
        )


@dataclass(frozen=True)
class GuidedStep:
    """Descent on the learner's loss, each mean at its own rate: `args` are the factors on the common one."""

    learner: UCB

    def init(self, params: Posterior) -> PyTree:
        return params, first_moments(self.learner.optimizer, params)

    def params(self, carry: PyTree) -> Posterior:
        return carry[0]

    def __call__(
        self, key: Key[Array, ""], carry: PyTree, args: Weights, batch: Batch, progress: Float[Array, ""]
    ) -> tuple[PyTree, Float[Array, ""]]:
        learner, (posterior, moments) = self.learner, carry
        objective, gradient = jax.value_and_grad(learner.loss, argnums=1)(key, posterior, batch)
        # Adam divides out the scale of a gradient, so the factors apply to its update.
        along, moments = OPTIMIZERS[learner.optimizer].update(gradient, moments)
        rate = learner.learning_rate * learning_rate(learner.schedule, progress)
        mean = jax.tree.map(lambda m, d, r: m - rate * r * d, posterior.mean, along.mean, args)
        rho = learner.step_rho(posterior.rho, along.rho, progress)
        return (Posterior(mean, rho), moments), objective


def rho_of(std: float) -> float:
    """ρ where log(1 + e^ρ) = σ."""
    return std + math.log(-math.expm1(-std))


def draw(key: Key[Array, ""], q: Posterior) -> tuple[Weights, Float[Array, ""]]:
    """w = μ + σ ε, ε ~ N(0, 1), and log q(w) = -Σ_i [½ ε² + log σ + ½ log 2π]."""
    means, structure = jax.tree.flatten(q.mean)
    keys = jax.tree.unflatten(structure, list(jax.random.split(key, len(means))))
    std = q.std()
    noise = jax.tree.map(lambda k, m: jax.random.normal(k, m.shape, m.dtype), keys, q.mean)
    weights = jax.tree.map(lambda m, s, e: m + s * e, q.mean, std, noise)
    return weights, total(lambda s, e: -0.5 * e**2 - jnp.log(s) - 0.5 * math.log(2.0 * math.pi), std, noise)
