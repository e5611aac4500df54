"""The quadratic penalty Σ_i P_i (θ_i - m_i)² of methods that hold weights where they mattered."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from vcl.networks import MLP
from vcl.training import descend


def quadratic(network: MLP, precision: MLP, centre: MLP) -> Float[Array, ""]:
    """Σ_i P_i (θ_i - m_i)²."""
    terms = jax.tree.map(lambda w, p, m: jnp.sum(p * (w - m) ** 2), network, precision, centre)
    return jnp.sum(jnp.stack(jax.tree.leaves(terms)))


def held_step(
    network: MLP, moments: PyTree, gradient: MLP, strength: float, held: tuple[MLP, MLP], rate: Float[Array, ""]
) -> tuple[MLP, PyTree]:
    """One step of Adam on a loss with this gradient plus strength · Σ_i P_i (θ_i - m_i)²; `held` are P and m."""
    both = jax.tree.map(lambda g, w, p, m: g + 2.0 * strength * p * (w - m), gradient, network, *held)
    return descend("adam", network, moments, both, rate)
