"""What the outputs of a network say about a label, as values: classes, or a number with noise."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Shaped

from vcl.nets.losses import cross_entropy


@runtime_checkable
class Likelihood(Protocol):
    """p(y | outputs)."""

    def loss(self, outputs: Float[Array, "*s n c"], labels: Shaped[Array, "n"]) -> Float[Array, "*s n"]:
        """-log p(y | outputs), for each sample and example."""

    def parameters(self, outputs: Float[Array, "*s n c"]) -> Float[Array, "*s n c"]:
        """The distribution's parameters: what a learner's `predict` returns."""


@dataclass(frozen=True)
class Categorical:
    """Classes: the outputs are logits."""

    def loss(self, outputs: Float[Array, "*s n c"], labels: Shaped[Array, "n"]) -> Float[Array, "*s n"]:
        return cross_entropy(outputs, labels)

    def parameters(self, outputs: Float[Array, "*s n c"]) -> Float[Array, "*s n c"]:
        """Log probabilities."""
        return jax.nn.log_softmax(outputs)


@dataclass(frozen=True)
class Normal:
    """A number: the outputs are its mean and its log-variance, so that the noise is learnt and may depend on x.

    The log-variance is kept within ±10, where exp and its inverse are harmless; targets are standardised.
    """

    def loss(self, outputs: Float[Array, "*s n 2"], labels: Shaped[Array, "n"]) -> Float[Array, "*s n"]:
        mean, log_var = jnp.moveaxis(self.parameters(outputs), -1, 0)
        return 0.5 * (jnp.log(2.0 * jnp.pi) + log_var + (labels - mean) ** 2 * jnp.exp(-log_var))

    def parameters(self, outputs: Float[Array, "*s n 2"]) -> Float[Array, "*s n 2"]:
        """Mean and log-variance."""
        return outputs.at[..., 1].set(10.0 * jnp.tanh(outputs[..., 1] / 10.0))
