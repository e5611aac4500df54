"""The version in one file is the method of the package."""

import runpy
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import vcl
from vcl.core import StreamSpec
from vcl.nets import MLP, Affine, zeros
from vcl.posteriors.mean_field import Gaussian, MeanField, kl

PATH = Path(__file__).parent.parent / "examples" / "minimal_vcl.py"


@pytest.fixture(scope="module")
def minimal():
    return runpy.run_path(str(PATH), run_name="minimal")


def as_gaussian(q) -> Gaussian:
    """The same posterior as the package has it."""
    like = zeros(MLP((5,)), StreamSpec((3,), "float32", 2, (0,), 10))
    parts = [like.with_layers([Affine(p["w1"], p["b1"]), Affine(p["w2"], p["b2"])]) for p in q]
    return Gaussian(*parts)


def test_it_can_be_read_in_one_sitting():
    assert len(PATH.read_text().splitlines()) <= 200


def test_divergence_and_layers_are_those_of_the_package(minimal):
    p = minimal["prior"](3, 5, 2)
    q = minimal["fresh"](jax.random.key(1), p)
    assert float(minimal["kl"](q, p)) == pytest.approx(float(kl(as_gaussian(q), as_gaussian(p))), rel=1e-6)
    x, key = jax.random.normal(jax.random.key(2), (4, 3)), jax.random.key(3)
    ours = MeanField().preactivation(key, MeanField().layers(as_gaussian(q))[0], x, None)
    (m, v) = q
    theirs = minimal["layer"](key, m["w1"], m["b1"], v["w1"], v["b1"], x)
    np.testing.assert_allclose(theirs, ours, rtol=1e-6)


def test_it_reaches_the_accuracy_of_the_package(minimal):
    stream = vcl.build("split-digits", vcl.StreamOptions(num_tasks=3), seed=0)
    tasks = [
        (train.inputs / np.float32(255), train.labels, test.inputs / np.float32(255), test.labels)
        for train, test in ((stream.train(t), stream.test(t)) for t in range(3))
    ]
    matrix = minimal["continual"](tasks, hidden=20, epochs=100, batch=64)
    result = vcl.learn(vcl.VCL(hidden=(20,), epochs=100, batch_size=64), stream)
    assert np.mean(matrix[-1]) == pytest.approx(result["average_accuracy"], abs=0.03)
    assert np.mean(matrix[-1]) > 0.95
    assert jnp.isfinite(jnp.array(matrix[-1])).all()
