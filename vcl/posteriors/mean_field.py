"""Mean-field Gaussians over pytrees of arrays, and over the weights of networks."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, PyTree

from vcl.nets import Affine, Weights, forward, logits


class Gaussian(eqx.Module):
    """q(θ) = Π_i N(θ_i; mean_i, exp(log_var_i)), one factor for each number in a pytree."""

    mean: PyTree[Float[Array, "..."]]
    log_var: PyTree[Float[Array, "..."]]


def isotropic(like: PyTree[Float[Array, "..."]], mean: float, std: float) -> Gaussian:
    """N(mean, std²) for every number in `like`."""
    return Gaussian(
        jax.tree.map(lambda a: jnp.full_like(a, mean), like),
        jax.tree.map(lambda a: jnp.full_like(a, 2.0 * jnp.log(std)), like),
    )


def sample(key: Key[Array, ""], q: Gaussian) -> PyTree[Float[Array, "..."]]:
    """θ = mean + std · ε, ε ~ N(0, 1)."""
    means, structure = jax.tree.flatten(q.mean)
    keys = jax.tree.unflatten(structure, list(jax.random.split(key, len(means))))
    return jax.tree.map(
        lambda k, m, v: m + jnp.exp(0.5 * v) * jax.random.normal(k, m.shape, m.dtype), keys, q.mean, q.log_var
    )


def log_prob(q: Gaussian, theta: PyTree[Float[Array, "..."]]) -> Float[Array, ""]:
    """log q(θ) = -½ Σ [log 2π + log_var + (θ - mean)² / var]."""
    return total(
        lambda x, m, v: -0.5 * (jnp.log(2 * jnp.pi) + v + (x - m) ** 2 * jnp.exp(-v)), theta, q.mean, q.log_var
    )


def kl(q: Gaussian, p: Gaussian) -> Float[Array, ""]:
    """KL(q ‖ p) = ½ Σ [log(σ_p²/σ_q²) - 1 + (σ_q² + (μ_q - μ_p)²) / σ_p²]."""
    return total(kl_terms, q.mean, q.log_var, p.mean, p.log_var)


def kl_terms(
    mean: Float[Array, "*s"],
    log_var: Float[Array, "*s"],
    prior_mean: Float[Array, "*s"],
    prior_log_var: Float[Array, "*s"],
) -> Float[Array, "*s"]:
    """The KL divergence of each factor by itself."""
    ratio = jnp.exp(log_var - prior_log_var)
    return 0.5 * (prior_log_var - log_var - 1.0 + ratio + (mean - prior_mean) ** 2 * jnp.exp(-prior_log_var))


def total(term: Callable[..., Float[Array, "..."]], *trees: PyTree[Float[Array, "..."]]) -> Float[Array, ""]:
    """Σ of `term` over corresponding numbers of the trees."""
    return jnp.sum(jnp.stack([jnp.sum(a) for a in jax.tree.leaves(jax.tree.map(term, *trees))]))


LayerMoments = tuple[Affine, Affine]
"""The means and the log-variances of one affine map."""


@dataclass(frozen=True)
class MeanField:
    """q(θ) = Π_i N(θ_i; μ_i, σ_i²): every weight by itself. A `vcl.posteriors.Family`.

    Examples
    --------
    >>> import jax
    >>> from vcl.core import StreamSpec
    >>> from vcl.nets import MLP, zeros
    >>> from vcl.posteriors import MeanField
    >>> weights = zeros(MLP((5,)), StreamSpec((4,), "float32", 2, (0,), 10))
    >>> q = MeanField().prior(weights, std=1.0)
    >>> float(MeanField().kl(q, q))
    0.0
    """

    def prior(self, like: Weights, std: float) -> Gaussian:
        """N(0, std²) on every weight and bias."""
        return isotropic(like, 0.0, std)

    def fresh(self, key: Key[Array, ""], like: Weights, init_std: float, init_log_var: float) -> Gaussian:
        """Small random means, small variances: where a new task's optimisation begins."""
        leaves, structure = jax.tree.flatten(like)
        keys = jax.random.split(key, len(leaves))
        means = [init_std * jax.random.normal(k, a.shape) for k, a in zip(keys, leaves, strict=True)]
        log_vars = [jnp.full(a.shape, init_log_var) for a in leaves]
        return Gaussian(jax.tree.unflatten(structure, means), jax.tree.unflatten(structure, log_vars))

    def sample(self, key: Key[Array, ""], q: Gaussian) -> Weights:
        """θ ~ q."""
        return sample(key, q)

    def kl(self, q: Gaussian, p: Gaussian) -> Float[Array, ""]:
        """KL(q ‖ p), in closed form."""
        return kl(q, p)

    def network(self, q: Gaussian) -> Weights:
        """The mean weights, which know their network."""
        return q.mean

    def layers(self, q: Gaussian) -> Sequence[LayerMoments]:
        """What `preactivation` takes, for each affine map from the inputs up."""
        return tuple(zip(q.mean.layers, q.log_var.layers, strict=True))

    def preactivation(
        self, key: Key[Array, ""], layer: LayerMoments, h: Float[Array, "..."], num_samples: int | None
    ) -> Float[Array, "..."]:
        """a ~ N(h·M + m, h²·S + s), M, m the means and S, s the variances, independently for each example.

        `num_samples` adds a leading axis of so many samples; None where `h` has it already.
        """
        mean, log_var = layer
        centre = h @ mean.weight + mean.bias
        variance = (h * h) @ jnp.exp(log_var.weight) + jnp.exp(log_var.bias)
        shape = centre.shape if num_samples is None else (num_samples, *centre.shape)
        return centre + jnp.sqrt(variance) * jax.random.normal(key, shape, centre.dtype)

    def marginals(self, q: Gaussian) -> Gaussian:
        """The mean and the variance of every weight by itself."""
        return q


def logits_weight_sampled(
    key: Key[Array, ""], q: Gaussian, inputs: Float[Array, "n d"], num_samples: int
) -> Float[Array, "s n c"]:
    """Weights drawn from q, once for the whole batch and each sample."""
    return jax.vmap(lambda k: logits(sample(k, q), inputs))(jax.random.split(key, num_samples))


def logits_local(
    key: Key[Array, ""], q: Gaussian, inputs: Float[Array, "n d"], num_samples: int
) -> Float[Array, "s n c"]:
    """Local reparameterisation (Kingma et al., 2015): sample pre-activations, independently for each example.

    The first layer's products do not depend on the sample: they are computed once, then broadcast. Images take too
    much memory for that: their samples are drawn one after the other.
    """
    family = MeanField()
    layers = family.layers(q)
    if family.network(q).network.reads_images and num_samples > 1:
        one = jax.checkpoint(lambda k: logits_local(k, q, inputs, 1)[0])
        return jax.lax.map(one, jax.random.split(key, num_samples))
    keys = jax.random.split(key, len(layers))

    def affine(number: int, layer: LayerMoments, h: Float[Array, "..."]) -> Float[Array, "..."]:
        return family.preactivation(keys[number], layer, h, None if number else num_samples)

    return forward(family.network(q), layers, inputs, affine)
