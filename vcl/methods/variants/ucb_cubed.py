"""UCB with rates that fall as the cube of σ: a departure from Ebrahimi et al. (2019) that forgets less.

From the second task on, the learning rate of each μ_i is multiplied by

    min((g σ_i)^p, 1),

published g = p = 1. ρ has a rate of its own, which may rise as that of the means falls (`spread_schedule`); σ never
exceeds σ₁; pre-activations may be sampled for each example instead of weights for each minibatch (`draws`); and the
divergence from the prior has the weight κ. With κ = 0, steps of plain gradient descent let σ⁻² grow by the curvature
of the likelihood: at a rate r, E[∂/∂ρ_i] ≈ σ_i² h_i gives σ_i⁻² ← σ_i⁻² + 2 r h_i a step. σ⁻² is then a sum over all
tasks, as in the Laplace approximation.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from vcl.errors import VclError
from vcl.methods.base.settings import Recipes, check_not_negative, check_positive, family_settings
from vcl.methods.ucb import UCB, Posterior, draw, rho_of
from vcl.nets import Weights, cross_entropy, logits, pixels
from vcl.posteriors.mean_field import logits_local
from vcl.training import Batch, learning_rate, masked_mean

CUBED = {
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
}


@dataclass(frozen=True)
class UCBCubed(UCB):
    """UCB with learning rates that fall as the cube of each weight's uncertainty, without the prior.

    Examples
    --------
    >>> UCBCubed(guidance=24.0).exponent
    3.0
    """

    guidance: Annotated[float, "g: from the second task on, the rate of each mean is multiplied by (g σ)^p"] = 1.0
    exponent: Annotated[float, "p, the power of σ (published: 1)"] = 3.0
    spread_rate: Annotated[float, "the step size for ρ, which is not scaled (published: that of the means)"] = 0.001
    spread_schedule: Annotated[
        Literal["same", "opposite"], "whether the rate of ρ follows that of the means, or rises as that one falls"
    ] = "same"
    draws: Annotated[
        Literal["weights", "activations"],
        "sampled in training: weights for a minibatch (published), or pre-activations for each example",
    ] = "activations"
    kl_weight: Annotated[float, "κ, the weight of log q(w) - log p(w) (published: 1)"] = 0.0

    recipes: ClassVar[Recipes] = {
        "fast": family_settings(
            split=CUBED,
            permuted=CUBED,
            split_mnist={"learning_rate": 0.13, "guidance": 8.8, "spread_rate": 127.0},
        )
    }

    def __post_init__(self) -> None:
        UCB.__post_init__(self)
        check_positive(self, "guidance", "exponent")
        check_not_negative(self, "spread_rate", "kl_weight")
        if self.init_std > self.prior_std:
            raise VclError(
                f"--init-std must not be above --prior-std, but they are {self.init_std} and {self.prior_std}: "
                "σ never exceeds --prior-std."
            )
        if self.spread_schedule == "opposite" and self.schedule == "constant":
            raise VclError(
                "--spread-schedule opposite raises the rate of ρ as that of the means falls; with "
                "--schedule constant σ would never be learnt. Choose --schedule cosine or --spread-schedule same."
            )

    def rate(self, std: Float[Array, "*s"]) -> Float[Array, "*s"]:
        """min((g σ)^p, 1)."""
        return jnp.minimum((self.guidance * std) ** self.exponent, 1.0)

    def step_rho(self, rho: Weights, direction: Weights, progress: Float[Array, ""]) -> Weights:
        """ρ after a step, at its own rate and never above that of σ₁."""
        factor = learning_rate(self.schedule, progress)
        rate = self.spread_rate * (factor if self.spread_schedule == "same" else 1.0 - factor)
        widest = rho_of(self.prior_std)
        return jax.tree.map(lambda r, d: jnp.minimum(r - rate * d, widest), rho, direction)

    def loss(self, key: Key[Array, ""], posterior: Posterior, batch: Batch) -> Float[Array, ""]:
        """-(1/N) log likelihood + (κ/N) [log q(w) - log p(w)], at w ~ q."""
        inputs = pixels(batch.inputs)
        drawn, log_q = jax.vmap(lambda k: draw(k, posterior))(jax.random.split(key, self.train_samples))
        if self.draws == "weights":
            outputs = jax.vmap(lambda weights: logits(weights, inputs))(drawn)
        else:
            _, for_activations = jax.random.split(key)
            outputs = logits_local(for_activations, posterior.gaussian(), inputs, self.train_samples)
        unlikelihood = masked_mean(cross_entropy(outputs, batch.labels), batch.mask)
        if not self.kl_weight:
            return unlikelihood
        divergence = jnp.mean(log_q - jax.vmap(self.log_prior)(drawn))
        return unlikelihood + self.kl_weight * divergence / batch.size
