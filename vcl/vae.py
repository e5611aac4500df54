"""Variational autoencoders (Kingma & Welling, 2014; Rezende et al., 2014): examples that can be made again.

    -ELBO(x) = E_{z ~ q(z | x)} [-log p(x | z)] + KL(q(z | x) ‖ N(0, I)),

with q(z | x) = N(μ(x), exp(v(x))), whose `code` [μ, v] an encoder gives. Pixels are probabilities of Bernoulli
variables; other inputs are Gaussian, with a noise for each feature that is learnt too.
"""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from vcl.core import StreamSpec
from vcl.nets import Affine, Weights, from_layers, logits, random_like
from vcl.posteriors.mean_field import kl_terms

LEAST_NOISE = 1e-4
"""Keeps the density finite where a feature never varies."""


class Decoder(eqx.Module):
    """p(x | z): Bernoulli where there is no `log_noise`, else Gaussian with variance exp(log_noise) + 1e-4."""

    network: Weights
    log_noise: Float[Array, "d"] | None


def dense(key: Key[Array, ""], *widths: int) -> Weights:
    """A network of these widths, the last layer linear."""
    return random_like(
        key, from_layers([Affine(jnp.zeros((i, o)), jnp.zeros(o)) for i, o in itertools.pairwise(widths)])
    )


def random_encoder(key: Key[Array, ""], hidden: tuple[int, ...], latent: int, spec: StreamSpec) -> Weights:
    return dense(key, spec.input_size, *hidden, 2 * latent)


def random_decoder(key: Key[Array, ""], hidden: tuple[int, ...], latent: int, spec: StreamSpec) -> Decoder:
    """With hidden layers that mirror those of an encoder."""
    network = dense(key, latent, *hidden[::-1], spec.input_size)
    return Decoder(network, None if spec.input_dtype == "uint8" else jnp.zeros(spec.input_size))


def negative_elbo(
    key: Key[Array, ""], decoder: Decoder, code: Float[Array, "n code"], inputs: Float[Array, "n d"]
) -> Float[Array, "n"]:
    """-ELBO of each input, with one draw of z for each."""
    mean, log_var = jnp.split(code, 2, axis=1)
    z = mean + jnp.exp(0.5 * log_var) * jax.random.normal(key, mean.shape, mean.dtype)
    zero = jnp.zeros_like(mean)
    return negative_log_likelihood(decoder, z, inputs) + jnp.sum(kl_terms(mean, log_var, zero, zero), axis=1)


def negative_log_likelihood(
    decoder: Decoder, z: Float[Array, "n latent"], inputs: Float[Array, "n d"]
) -> Float[Array, "n"]:
    """-log p(x | z), summed over the features."""
    outputs = logits(decoder.network, z)
    if decoder.log_noise is None:
        # The softplus of the outputs: jax.nn.softplus takes longer.
        softplus = jnp.maximum(outputs, 0.0) + jnp.log1p(jnp.exp(-jnp.abs(outputs)))
        return jnp.sum(softplus - inputs * outputs, axis=1)
    variance = jnp.exp(decoder.log_noise) + LEAST_NOISE
    return 0.5 * jnp.sum(jnp.log(2.0 * jnp.pi * variance) + (inputs - outputs) ** 2 / variance, axis=1)


def generate(key: Key[Array, ""], decoder: Decoder, count: int) -> Float[Array, "{count} d"]:
    """E[x | z] for draws z ~ N(0, I)."""
    weight = decoder.network.layers[0].weight
    outputs = logits(decoder.network, jax.random.normal(key, (count, weight.shape[0]), weight.dtype))
    return jax.nn.sigmoid(outputs) if decoder.log_noise is None else outputs
