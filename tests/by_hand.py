"""Penalised training in numpy, step by step, for the methods that measure the path of their weights."""

from collections.abc import Iterator

import jax.numpy as jnp
import numpy as np

from vcl.core import StreamSpec
from vcl.nets import Affine, Weights, from_layers

SIZE = 30
Numbers = dict[str, np.ndarray]


def spec(heads: tuple[int, ...]) -> StreamSpec:
    return StreamSpec((6,), "float32", 2, heads, SIZE)


def drawn(rng: np.random.Generator, low: float, high: float) -> Numbers:
    """Numbers for a network with six inputs, four hidden units and two classes."""
    shapes = {"w1": (6, 4), "b1": (4,), "w2": (4, 2), "b2": (2,)}
    return {name: rng.uniform(low, high, shape) for name, shape in shapes.items()}


def to_mlp(w: Numbers) -> Weights:
    a = {name: jnp.asarray(value) for name, value in w.items()}
    return from_layers([Affine(a["w1"], a["b1"]), Affine(a["w2"], a["b2"])])


def assert_close(found: Weights, expected: Numbers) -> None:
    """Optax corrects Adam's bias in single precision, whence the tolerance."""
    (body,), head = found.body, found.head
    for a, b in zip((body.weight, body.bias, head.weight, head.bias), expected.values(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-9)


def gradient(w: Numbers, x: np.ndarray, y: np.ndarray) -> Numbers:
    """Of the mean -log p(y | x)."""
    hidden = np.maximum(x @ w["w1"] + w["b1"], 0.0)
    p = np.exp(hidden @ w["w2"] + w["b2"])
    error = (p / p.sum(1, keepdims=True) - np.eye(2)[y]) / len(y)
    below = (error @ w["w2"].T) * (hidden > 0)
    return {"w1": x.T @ below, "b1": below.sum(0), "w2": hidden.T @ error, "b2": error.sum(0)}


def adam(
    w: Numbers, importance: Numbers, anchor: Numbers, strength: float, rate: float, x: np.ndarray, y: np.ndarray
) -> Iterator[tuple[Numbers, Numbers]]:
    """The task's own gradient, and the change, in each step on all examples."""
    first, second = ({name: np.zeros_like(a) for name, a in w.items()} for _ in range(2))
    step = 0
    while True:
        step += 1
        own, change = gradient(w, x, y), {}
        for name, g in own.items():
            total = g + 2.0 * strength * importance[name] * (w[name] - anchor[name])
            first[name] = 0.9 * first[name] + 0.1 * total
            second[name] = 0.999 * second[name] + 0.001 * total**2
            m, v = first[name] / (1 - 0.9**step), second[name] / (1 - 0.999**step)
            change[name] = -rate * m / (np.sqrt(v) + 1e-8)
        w = {name: w[name] + change[name] for name in w}
        yield own, change


class Known:
    """A fit whose outcome is known; it keeps what it was asked to hold."""

    def __init__(self, *outcome):
        self.outcome = outcome

    def __call__(self, key, name, step, params, args, data, *, epochs, batch_size):
        self.held = args
        return self.outcome
