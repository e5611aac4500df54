"""Time of a training step divided by the time of its unavoidable matrix products, measured in the same run.

    .venv/bin/python bench/step.py
    .venv/bin/python bench/step.py --cores 2

The two workloads of the paper, with 1 sample (recipe `fast`) and 10 (`paper`), under both generators of noise.
Unavoidable are, for each layer and one sample, the products with means and with variances forward, their gradients
with respect to the weights, and, above the first layer, with respect to the inputs. Step and products are measured
in turn, and the fastest of each count.
"""

import argparse
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from measure import Timer, clock, in_turn, ratio, use_cores, write

from vcl.core import Examples, StreamSpec
from vcl.methods.vcl import VCL
from vcl.nets import select_head
from vcl.training import Adam, compiled_epochs, to_device

ROUNDS = 10
STEPS = 24
WORKLOADS = {
    "split MNIST, 784-200-2, 256": ((200,), 2, 256),
    "permuted MNIST, 784-100-100-10, 1024": ((100, 100), 10, 1024),
}
LIMITS = {1: 1.25, 10: 4.5}
"""The largest ratio that we want, by the number of samples."""


def step_time(hidden: tuple[int, ...], classes: int, batch_size: int, **settings: Any) -> Timer:
    """Seconds per step of the real loop."""
    examples = batch_size * STEPS
    rng = np.random.default_rng(0)
    images = (rng.random((examples, 784)) < 0.2) * rng.integers(0, 256, (examples, 784))
    data = to_device(Examples(images.astype(np.uint8), rng.integers(0, classes, examples)), examples)
    learner = VCL(hidden=hidden, batch_size=batch_size, **settings)
    key = jax.random.key(0)
    prior = select_head(learner.init(key, StreamSpec((28, 28), "uint8", classes, (0,), examples)).posterior, 0)
    step = Adam(learner.nelbo, 0.005)

    def measure() -> float:
        start = step.init(learner.fresh(key, prior.mean))
        carry = jax.block_until_ready(jax.tree.map(lambda a: jnp.array(a, a.dtype), start))
        began = clock()
        done = compiled_epochs()(step, batch_size, key, carry, jnp.zeros(1), prior, data, jnp.int32(0), jnp.int32(1))
        jax.block_until_ready(done)
        return (clock() - began) / STEPS

    return measure


def products_time(hidden: tuple[int, ...], classes: int, batch_size: int) -> Timer:
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
        began = clock()
        jax.block_until_ready(many(inputs, weights, errors))
        return (clock() - began) / STEPS

    return measure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--cores", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    options = parser.parse_args()
    use_cores(options.cores)
    rows = []
    for name, workload in WORKLOADS.items():
        cases = {(noise, samples) for noise in ("hash", "threefry") for samples in LIMITS}
        timers = {
            f"{noise} {samples}": step_time(*workload, noise=noise, train_samples=samples)
            for noise, samples in sorted(cases)
        }
        taken = in_turn({"products": products_time(*workload), **timers}, options.rounds)
        for case in timers:
            noise, samples = case.split()
            rows.append(
                {
                    "workload": name,
                    "noise": noise,
                    "samples": int(samples),
                    "step (ms)": 1e3 * min(taken[case]),
                    "products of one sample (ms)": 1e3 * min(taken["products"]),
                    "ratio": ratio(taken, case, "products"),
                    "wanted": LIMITS[int(samples)],
                }
            )
    write(f"step-{options.cores}-core{'s' if options.cores > 1 else ''}", "A step beside its products", rows)


if __name__ == "__main__":
    main()
