"""How well inputs drawn with a task's first two moments stand for its data.

    .venv/bin/python bench/recalled_inputs.py

`kronecker-vcl-recall` preserves the predictions of a network on such inputs. Here a first network is trained on
MNIST, and a second one of the same size is distilled from it, from a random start, on drawn inputs only. The
accuracy of the second network on test data shows how much the drawn inputs convey. The number of leading
directions of the covariance, the softness, and clipping to the range of the data are varied.
"""

import argparse
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Key
from measure import write

import vcl
from vcl.methods.variants.kronecker_vcl_recall import Moments, draw, mean_divergence, no_moments, with_task
from vcl.nets import MLP, Weights, cross_entropy, logits, pixels, random_like, select_head, zeros
from vcl.training import to_device

BATCH = 512
RATE = 0.003
TRIALS = [(rank, 1.0, False) for rank in (32, 64, 128, 256)] + [(64, 1.0, True), (64, 2.0, False), (256, 2.0, False)]
"""Directions, softness, and whether draws are cut off."""


def descend(start: Weights, loss, key: Key[Array, ""], steps: int) -> Weights:
    """Adam with a rate that falls by a cosine; `loss` takes the weights and a key."""
    adam = optax.adam(optax.cosine_decay_schedule(RATE, steps))

    def step(carry, k):
        weights, moments = carry
        change, moments = adam.update(jax.grad(loss)(weights, k), moments)
        return (optax.apply_updates(weights, change), moments), None

    keys = jax.random.split(key, steps)
    return jax.jit(lambda: jax.lax.scan(step, (start, adam.init(start)), keys)[0][0])()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=3000)
    asked = parser.parse_args()
    stream = vcl.build("permuted-mnist", vcl.StreamOptions(num_tasks=1), seed=0)
    data, test = to_device(stream.train(0), stream.spec.capacity), stream.test(0)
    inputs, images, labels = pixels(data.inputs), pixels(jnp.asarray(test.inputs)), np.asarray(test.labels)
    least, greatest = inputs.min(0), inputs.max(0)
    like = select_head(zeros(MLP((100, 100)), stream.spec), 0)
    first_key, second_key, key = jax.random.split(jax.random.key(0), 3)

    def nll(weights: Weights, k: Key[Array, ""]) -> Float[Array, ""]:
        rows = jax.random.randint(k, (BATCH,), 0, data.size)
        return cross_entropy(logits(weights, inputs[rows])[None], data.labels[rows]).mean()

    first = descend(random_like(first_key, like), nll, key, asked.steps)
    before = logits(first, images)

    def recalled(weights: Weights, k: Key[Array, ""], moments: Moments, softness: float, cut: bool):
        drawn = draw(k, moments, BATCH)[0].reshape(BATCH, -1)
        drawn = jnp.clip(drawn, least, greatest) if cut else drawn
        return mean_divergence(logits(first, drawn), logits(weights, drawn), softness)

    rows = []
    for rank, softness, cut in TRIALS:
        moments = with_task(no_moments(1, rank, inputs.shape[1]), 0, 0, data)
        loss = partial(recalled, moments=moments, softness=softness, cut=cut)
        second = descend(random_like(second_key, like), loss, key, asked.steps)
        after = logits(second, images)
        rows.append(
            {
                "directions": rank,
                "softness": softness,
                "cut off": "yes" if cut else "no",
                "accuracy (%)": f"{100 * float((np.asarray(after).argmax(1) == labels).mean()):.2f}",
                "KL to the first (nats)": round(float(mean_divergence(before, after)), 4),
            }
        )
    accuracy = 100 * float((np.asarray(before).argmax(1) == labels).mean())
    write("recalled-inputs", f"What drawn inputs tell of digits; the first network has {accuracy:.2f} %", rows)


if __name__ == "__main__":
    main()
