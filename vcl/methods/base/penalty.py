"""The quadratic penalty Σ_i P_i (θ_i - m_i)² on changes of important weights."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from vcl.nets import Weights
from vcl.training import descend


def quadratic(network: Weights, precision: Weights, centre: Weights) -> Float[Array, ""]:
    """Σ_i P_i (θ_i - m_i)²."""
    terms = jax.tree.map(lambda w, p, m: jnp.sum(p * (w - m) ** 2), network, precision, centre)
    return jnp.sum(jnp.stack(jax.tree.leaves(terms)))


def held_step(
    network: Weights,
    moments: PyTree,
    gradient: Weights,
    strength: float,
    held: tuple[Weights, Weights],
    rate: Float[Array, ""],
) -> tuple[Weights, PyTree]:
    """One step of Adam on a loss with this gradient plus strength · Σ_i P_i (θ_i - m_i)²; `held` are P and m."""
    both = jax.tree.map(lambda g, w, p, m: g + 2.0 * strength * p * (w - m), gradient, network, *held)
    return descend("adam", network, moments, both, rate)
