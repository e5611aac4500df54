"""Posterior families over the weights of a network, as values."""

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from jaxtyping import Array, Float, Key

from vcl.nets import Weights
from vcl.posteriors.kronecker import KroneckerFactored, MatrixNormal
from vcl.posteriors.mean_field import Gaussian, MeanField

__all__ = ["Family", "Gaussian", "KroneckerFactored", "MatrixNormal", "MeanField"]

Posterior = Any
"""A pytree of arrays that parameterises a distribution over `Weights`."""


@runtime_checkable
class Family(Protocol):
    """A family of distributions over weights. `MeanField` and `KroneckerFactored` are two."""

    def prior(self, like: Weights, std: float) -> Posterior:
        """N(0, std²) on every weight and bias."""

    def fresh(self, key: Key[Array, ""], like: Weights, init_std: float, init_log_var: float) -> Posterior:
        """Where a new task's optimisation begins."""

    def sample(self, key: Key[Array, ""], q: Posterior) -> Weights:
        """θ ~ q."""

    def kl(self, q: Posterior, p: Posterior) -> Float[Array, ""]:
        """KL(q ‖ p)."""

    def network(self, q: Posterior) -> Weights:
        """The mean weights, which know their network."""

    def layers(self, q: Posterior) -> Sequence[Any]:
        """What `preactivation` takes, for each affine map from the inputs up."""

    def preactivation(
        self, key: Key[Array, ""], layer: Any, h: Float[Array, "..."], num_samples: int | None
    ) -> Float[Array, "..."]:
        """A draw of the pre-activation for gathered inputs `h`, independently for each example."""

    def marginals(self, q: Posterior) -> Gaussian:
        """The mean and the variance of every weight by itself: what analysis looks at."""
