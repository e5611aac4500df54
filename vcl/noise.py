"""Standard normal noise as a pure function of a key and a place.

Drawing noise is a third of the cost of VCL on permuted MNIST if it comes from `jax.random.normal` (threefry and an
inverse error function). `hash` costs about a fifth of that:

1. The number of the place is mixed with the key's two words by three rounds of multiplication and shifts (Wellons'
   `triple32`, with the second word added between the rounds): a random word w for each place.
2. (w, g·w mod 2³²) / 2³² is then a random point of a rank-1 lattice with 2³² points in the unit square, even enough
   to stand for two independent uniform numbers: g is 2³² divided by the golden ratio, rounded to an odd number.
3. √(-2 log u) · cos(2π v) of that point is normal (Box & Muller, 1958); logarithm and cosine are polynomials.

Every place by itself: nothing is carried along, so resuming needs no hidden state, and XLA fuses it all into what
uses the noise. `bench/noise.py` tests its distribution at 10⁷ draws and measures its cost.
"""

import math
from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Key, UInt

Generator = Literal["hash", "threefry"]

GOLDEN = 0x9E3779B1
MIXERS = ((17, 0xED5AD4BB), (11, 0xAC4C1B51), (15, 0x31848BAB))
"""Shift and multiplier of each round."""
LAST_SHIFT = 14

# Least-squares fits on Chebyshev nodes: errors below 4e-7 (logarithm) and 7e-9 (sine).
LOG = tuple(
    np.float32(c)
    for c in (1.00000096, -0.50001145, 0.333146738, -0.249082892, 0.204917596, -0.186807514, 0.119310544)
)
SINE = tuple(np.float32(c) for c in (0.999999996, -0.16666658, 0.00833305062, -0.000198090464, 2.60516628e-06))
SQRT_HALF_BITS = 0x3F3504F3


def normal(
    key: Key[Array, ""],
    shape: tuple[int, ...],
    dtype: DTypeLike = jnp.float32,
    generator: Generator = "hash",
    *,
    antithetic: bool = False,
) -> Float[Array, "..."]:
    """N(0, 1), independent for every place of `shape`.

    With `antithetic`, the second half of the first axis that is longer than one is the negative of the first half:
    every number is still N(0, 1), and the mean over that axis is nearly zero.

    Examples
    --------
    >>> import jax
    >>> draws = normal(jax.random.key(0), (10_000,))
    >>> abs(float(draws.mean())) < 0.03, abs(float(draws.std()) - 1) < 0.03
    (True, True)
    """
    if antithetic:
        return mirrored(lambda half: normal(key, half, dtype, generator), shape)
    return GENERATORS[generator](key, shape, dtype)


def threefry(key: Key[Array, ""], shape: tuple[int, ...], dtype: DTypeLike) -> Float[Array, "..."]:
    """JAX's own."""
    return jax.random.normal(key, shape, dtype)


def hashed(key: Key[Array, ""], shape: tuple[int, ...], dtype: DTypeLike) -> Float[Array, "..."]:
    """Box and Muller's transform of hashed places; at most 6.66 in absolute value."""
    word = words(key, shape)
    # Half a step away from zero, and signed integers: those that processors turn into floats at once.
    radius = (word >> 1).astype(jnp.int32).astype(jnp.float32) * np.float32(2.0**-31) + np.float32(2.0**-32)
    turned = jax.lax.bitcast_convert_type(word * jnp.uint32(GOLDEN), jnp.int32)
    half_angle = turned.astype(jnp.float32) * np.float32(math.pi / 2**32)
    sine = half_angle * polynomial(SINE, half_angle * half_angle)
    return (jnp.sqrt(-2.0 * log(radius)) * (1.0 - 2.0 * sine * sine)).astype(dtype)


GENERATORS: dict[str, Callable[[Key[Array, ""], tuple[int, ...], DTypeLike], Float[Array, "..."]]] = {
    "hash": hashed,
    "threefry": threefry,
}


def words(key: Key[Array, ""], shape: tuple[int, ...]) -> UInt[Array, "..."]:
    """A random 32-bit word for each place."""
    first, second = jax.random.key_data(key)[..., :2]
    word = places(shape) + first
    for number, (shift, multiplier) in enumerate(MIXERS):
        word = (word ^ (word >> shift)) * jnp.uint32(multiplier)
        # Keys that differ by less than the number of places share words before this point, none after it.
        word = word + second if number == 0 else word
    return word ^ (word >> LAST_SHIFT)


def places(shape: tuple[int, ...]) -> UInt[Array, "..."]:
    """The number of each place, the last axis fastest."""
    number, stride = jnp.zeros(shape, jnp.uint32), 1
    for axis in reversed(range(len(shape))):
        number += jax.lax.broadcasted_iota(jnp.uint32, shape, axis) * jnp.uint32(stride % 2**32)
        stride *= shape[axis]
    return number


def log(x: Float[Array, "*s"]) -> Float[Array, "*s"]:
    """log x for normal float32 x above zero: x = 2^e · m with m in [√½, √2), and a polynomial in m - 1."""
    bits = jax.lax.bitcast_convert_type(x, jnp.int32)
    exponent = (bits - SQRT_HALF_BITS) >> 23
    fraction = jax.lax.bitcast_convert_type(bits - (exponent << 23), jnp.float32) - 1.0
    return fraction * polynomial(LOG, fraction) + exponent.astype(jnp.float32) * np.float32(math.log(2.0))


def polynomial(coefficients: tuple[np.float32, ...], x: Float[Array, "*s"]) -> Float[Array, "*s"]:
    """Horner's rule, the constant first."""
    value = jnp.full_like(x, coefficients[-1])
    for coefficient in coefficients[-2::-1]:
        value = value * x + coefficient
    return value


def mirrored(draw: Callable[[tuple[int, ...]], Float[Array, "..."]], shape: tuple[int, ...]) -> Float[Array, "..."]:
    """A draw for half of the first axis that is longer than one, and its negative for the other half."""
    axis = next((a for a, length in enumerate(shape) if length > 1), None)
    if axis is None:
        return draw(shape)
    half = draw((*shape[:axis], -(-shape[axis] // 2), *shape[axis + 1 :]))
    whole = jnp.concatenate([half, -half], axis)
    return jax.lax.slice_in_dim(whole, 0, shape[axis], axis=axis)
