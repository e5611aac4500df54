"""The noise: its distribution at 10⁷ draws, and its cost beside `jax.random.normal`.

    .venv/bin/python bench/noise.py

Moments are given in standard errors, correlations in units of 1/√n: beyond 4 is too far, and the exit status is 1.
The cost is that of adding noise to an array in a compiled loop, for the shapes of the two workloads of the paper.
"""

import math
import sys
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from measure import clock, in_turn, ratio, use_cores, write
from scipy import stats

from vcl.noise import GENERATORS, normal

DRAWS = 10_000_000
SHAPES = {
    "split, 1 sample": (1, 256, 200),
    "permuted, 1 sample": (1, 1024, 100),
    "permuted, 10 samples": (10, 1024, 100),
}
LIMIT = 4.0


def moment(power: int) -> float:
    return 0.0 if power % 2 else float(math.prod(range(1, power, 2)))


def quality(generator: str) -> dict[str, float | str]:
    """How far the draws of one key are from independent standard normals."""
    draws = np.asarray(normal(jax.random.key(1), (10, 1000, DRAWS // 10_000), jnp.float32, generator), np.float64)  # type: ignore[arg-type]
    other = np.asarray(normal(jax.random.key(2), draws.shape, jnp.float32, generator), np.float64)  # type: ignore[arg-type]
    row: dict[str, float | str] = {"generator": generator}
    for power in range(1, 7):
        error = math.sqrt((moment(2 * power) - moment(power) ** 2) / draws.size)
        row[f"moment {power}"] = float((np.mean(draws**power) - moment(power)) / error)
    row["KS p-value"] = float(stats.kstest(draws.ravel(), "norm").pvalue)
    for axis, name in enumerate(("samples", "examples", "units")):
        first, second = np.delete(draws, -1, axis).ravel(), np.delete(draws, 0, axis).ravel()
        row[f"between {name}"] = float(np.corrcoef(first, second)[0, 1] * math.sqrt(first.size))
    row["between steps"] = float(np.corrcoef(draws.ravel(), other.ravel())[0, 1] * math.sqrt(draws.size))
    row["largest"] = float(np.abs(draws).max())
    return row


def cost(generator: str, shape: tuple[int, ...], repeats: int = 20) -> Callable[[], float]:
    """Seconds for one array of noise."""

    @jax.jit
    def many(key: jax.Array, scale: jax.Array) -> jax.Array:
        def add(i: jax.Array, total: jax.Array) -> jax.Array:
            return total + scale * normal(jax.random.fold_in(key, i), shape, jnp.float32, generator)  # type: ignore[arg-type]

        return jax.lax.fori_loop(0, repeats, add, jnp.zeros(shape))

    key, scale = jax.random.key(0), jnp.ones(shape)

    def measure() -> float:
        began = clock()
        jax.block_until_ready(many(key, scale))
        return (clock() - began) / repeats

    return measure


def main() -> None:
    use_cores(1)
    found = [quality(generator) for generator in GENERATORS]
    write("noise-quality", f"Noise at {DRAWS:,} draws", found)
    rows = []
    for name, shape in SHAPES.items():
        taken = in_turn({generator: cost(generator, shape) for generator in GENERATORS}, 9)
        times = {f"{generator} (ms)": 1e3 * min(values) for generator, values in taken.items()}
        rows.append({"noise for": name, **times, "ratio": ratio(taken, "hash", "threefry")})
    write("noise-cost", "Cost of noise, one core", rows)
    measured = [value for row in found for name, value in row.items() if name.startswith(("moment", "between"))]
    sys.exit(any(abs(float(value)) > LIMIT for value in measured))


if __name__ == "__main__":
    main()
