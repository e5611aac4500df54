"""Mean-field Gaussians over pytrees of arrays."""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, PyTree


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
