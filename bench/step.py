"""Time of a training step divided by the time of its unavoidable matrix products, measured in the same run.

    .venv/bin/python bench/step.py

The two workloads of the paper, with the fast recipe's single sample. Unavoidable are, for each layer, the products
with means and with variances forward, their gradients with respect to the weights, and, above the first layer, with
respect to the inputs. Machines are noisy: the two are measured in turn, and the median of the ratios is given.
"""

import itertools
import statistics
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from vcl.core import Examples, StreamSpec
from vcl.methods.vcl import VCL
from vcl.nets import select_head
from vcl.training import Adam, run_epochs, to_device

ROUNDS = 9
STEPS = 94
LIMIT = 1.8


def step_time(hidden: tuple[int, ...], classes: int, batch_size: int) -> Callable[[], float]:
    """Seconds per step of the real loop."""
    examples = batch_size * STEPS
    rng = np.random.default_rng(0)
    images = (rng.random((examples, 784)) < 0.2) * rng.integers(0, 256, (examples, 784))
    data = to_device(Examples(images.astype(np.uint8), rng.integers(0, classes, examples)), examples)
    learner = VCL(hidden=hidden, batch_size=batch_size)
    key = jax.random.key(0)
    prior = select_head(learner.init(key, StreamSpec((28, 28), "uint8", classes, (0,), examples)).posterior, 0)
    step = Adam(learner.nelbo, 0.005)

    def measure() -> float:
        start = step.init(learner.fresh(key, prior.mean))
        carry = jax.block_until_ready(jax.tree.map(lambda a: jnp.array(a, a.dtype), start))
        began = time.perf_counter()
        done = run_epochs(step, batch_size, key, carry, jnp.zeros(1), prior, data, jnp.int32(0), jnp.int32(1))
        jax.block_until_ready(done)
        return (time.perf_counter() - began) / STEPS

    return measure


def products_time(hidden: tuple[int, ...], classes: int, batch_size: int) -> Callable[[], float]:
    """Seconds for the matrix products of one step, in a compiled loop of their own."""
    widths = (784, *hidden, classes)
    key = jax.random.key(0)
    inputs = [jax.random.uniform(key, (batch_size, w)) for w in widths[:-1]]
    weights = [jax.random.normal(key, (i, o)) for i, o in itertools.pairwise(widths)]
    errors = [jax.random.normal(key, (batch_size, w)) for w in widths[1:]]

    @jax.jit
    def many(inputs: list[jax.Array], weights: list[jax.Array], errors: list[jax.Array]) -> list[jax.Array]:
        def once(_: int, carried: list[jax.Array]) -> list[jax.Array]:
            # Every product depends on the round before and feeds the next: none can be left out or moved.
            new = []
            for layer, (x, e, w) in enumerate(zip(inputs, errors, carried, strict=True)):
                forward = x @ w, x @ (w + 1.0)
                gradients = x.T @ (e + forward[0]), x.T @ (e - forward[1])
                total = gradients[0] + gradients[1]
                if layer:
                    down = (e + forward[0]) @ w.T, (e - forward[1]) @ (w + 1.0).T
                    total += (down[0] * down[1]).sum(0)[:, None]
                new.append(w + 1e-9 * total)
            return new

        return jax.lax.fori_loop(0, STEPS, once, weights)

    def measure() -> float:
        began = time.perf_counter()
        jax.block_until_ready(many(inputs, weights, errors))
        return (time.perf_counter() - began) / STEPS

    return measure


def main() -> None:
    print(f"{'workload':34s} {'step':>9s} {'products':>9s} {'ratio':>6s}")
    for name, hidden, classes, batch_size in (
        ("split MNIST, 784-200-2, 256", (200,), 2, 256),
        ("permuted MNIST, 784-100-100-10, 1024", (100, 100), 10, 1024),
    ):
        step, products = step_time(hidden, classes, batch_size), products_time(hidden, classes, batch_size)
        step(), products()  # compile
        pairs = [(step(), products()) for _ in range(ROUNDS)]
        ratio = statistics.median(s / p for s, p in pairs)
        times = [1e3 * statistics.median(column) for column in zip(*pairs, strict=True)]
        verdict = "" if ratio <= LIMIT else f"  above {LIMIT}"
        print(f"{name:34s} {times[0]:6.2f} ms {times[1]:6.2f} ms {ratio:6.2f}{verdict}")


if __name__ == "__main__":
    main()
