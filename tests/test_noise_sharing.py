"""Samples one after the other, noise per example, batch and class, and the softmax over all heads."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import make_stream

import vcl
from vcl.core import StreamSpec
from vcl.errors import VclError
from vcl.methods import make
from vcl.methods.vcl import VCL, AllHeads
from vcl.nets import MLP, select_head, wide, zeros
from vcl.posteriors.mean_field import (
    Gaussian,
    MeanField,
    draw_logits,
    expected_loss,
    logits_local,
    mean_with_gradient,
)
from vcl.training import Fitter

KEY = jax.random.key(4)
SPEC = StreamSpec((6,), "float32", 3, (0,), 20)
INPUTS = jax.random.uniform(jax.random.key(5), (8, 6))


def random_posterior(hidden: tuple[int, ...] = (5, 4), log_var: float = -2.0) -> Gaussian:
    weights = select_head(zeros(MLP(hidden), SPEC), 0)
    return MeanField().fresh(jax.random.key(6), weights, 0.5, log_var)


def squares(outputs: jax.Array) -> jax.Array:
    return jnp.mean(outputs**2)


@pytest.mark.parametrize("noise_per", ["example", "batch", "class"])
def test_samples_one_after_the_other_are_the_mean_over_samples(noise_per: str) -> None:
    """Value and gradient, against the same draws put side by side."""
    family, q, count = MeanField("hash", noise_per=noise_per), random_posterior(), 3

    def at_once(q: Gaussian) -> jax.Array:
        keys = [jax.random.fold_in(KEY, i) for i in range(count)]
        draws = [draw_logits(family, k, q.mean, family.layers(q), INPUTS, 1) for k in keys]
        return squares(jnp.concatenate(draws))

    def in_turn(q: Gaussian) -> jax.Array:
        return expected_loss(KEY, q, INPUTS, count, family, squares)

    value, gradient = jax.jit(jax.value_and_grad(in_turn))(q)
    wanted, wanted_gradient = jax.jit(jax.value_and_grad(at_once))(q)
    np.testing.assert_allclose(value, wanted, rtol=1e-5)
    for one, other in zip(jax.tree.leaves(gradient), jax.tree.leaves(wanted_gradient), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


def test_the_gradient_of_a_mean_is_scaled_by_what_follows() -> None:
    value, gradient = jax.value_and_grad(
        lambda x: 3.0 * mean_with_gradient(lambda key, a: jax.random.uniform(key) * a**2, 5, KEY, x)
    )(2.0)
    np.testing.assert_allclose(gradient, value, rtol=1e-6)  # d/dx 3 c x² = 6 c x, which is 3 c x² at 2


@functools.partial(jax.jit, static_argnames=("count", "family"))
def draws_of(q: Gaussian, inputs: jax.Array, count: int, family: MeanField) -> jax.Array:
    return logits_local(KEY, q, inputs, count, family)


def residuals(noise_per: str) -> np.ndarray:
    """Standardised noise of the first layer's pre-activations, recovered from draws: samples × examples × units."""
    family, q = MeanField("hash", noise_per=noise_per), random_posterior()
    centre, std = family.moments(family.layers(q)[0], INPUTS)
    return np.asarray((family.draw(KEY, (centre, std), 4) - centre) / std)


def test_who_shares_noise() -> None:
    assert np.ptp(residuals("example"), axis=1).min() > 0.1
    for shared in ("batch", "class"):
        np.testing.assert_allclose(np.ptp(residuals(shared), axis=1), 0.0, atol=1e-4)
        assert np.ptp(residuals(shared), axis=0).min() > 0.1
        assert np.ptp(residuals(shared), axis=2).min() > 0.1


@pytest.mark.parametrize("noise_per", ["batch", "class"])
def test_each_output_by_itself_is_distributed_as_with_noise_per_example(noise_per: str) -> None:
    q, count = random_posterior(), 20_000
    shared = np.asarray(draws_of(q, INPUTS, count, MeanField("hash", noise_per=noise_per)))
    single = np.asarray(draws_of(q, INPUTS, count, MeanField("hash")))
    np.testing.assert_allclose(shared.mean(0), single.mean(0), atol=0.06)
    np.testing.assert_allclose(shared.std(0), single.std(0), rtol=0.05)


def test_hidden_noise_per_class_makes_outputs_independent() -> None:
    """Outputs share hidden units, and so their noise, unless every class draws its own."""
    q = random_posterior((5,), log_var=-2.0)

    def largest_correlation(noise_per: str) -> float:
        draws = np.asarray(draws_of(q, INPUTS[:1], 20_000, MeanField("hash", noise_per=noise_per)))[:, 0]
        return float(np.abs(np.corrcoef(draws.T) - np.eye(3)).max())

    assert largest_correlation("class") < 0.03
    assert largest_correlation("batch") > 0.1


def test_softmax_over_all_heads_by_hand() -> None:
    stream = make_stream()
    learner = VCL(hidden=(5,), epochs=2, batch_size=16, test_samples=7, test_softmax="all")
    alone = VCL(hidden=(5,), epochs=2, batch_size=16, test_samples=7)
    both = [vcl.learn(each, stream) for each in (learner, alone)]
    assert both[0]["state_sha256"] == both[1]["state_sha256"], "it concerns test time only"
    state = learner.init(KEY, stream.spec)
    params = learner.readout(KEY, state, stream.spec.task(1), Fitter())
    assert isinstance(params, AllHeads)
    inputs = jnp.asarray(stream.train(0).inputs[:4])
    answer = np.exp(np.asarray(learner.predict(KEY, params, inputs)))
    assert answer.shape == (1, 4, stream.spec.num_classes)
    np.testing.assert_allclose(answer.sum(-1), 1.0, rtol=1e-5)
    outputs = learner.logits(KEY, wide(params.posterior), inputs, 7)
    over_all = np.asarray(jax.nn.softmax(outputs)).mean(0)
    classes = stream.spec.num_classes
    mine = over_all[:, classes : 2 * classes]
    np.testing.assert_allclose(answer[0], mine / mine.sum(-1, keepdims=True), rtol=1e-4)


def test_joint_training_refuses_a_softmax_over_all_heads() -> None:
    with pytest.raises(VclError, match="test-softmax"):
        make("joint-vcl", {"test_softmax": "all"})


def test_under_the_code_of_the_paper_split_tasks_are_learnt_by_a_linear_model() -> None:
    """Its only hidden layer has no ReLU: the mean of the outputs is linear in the inputs."""
    learner = VCL(hidden=(5,), last_hidden="linear")
    weights = select_head(zeros(learner.architecture, SPEC), 0)
    certain = MeanField().fresh(jax.random.key(6), weights, 0.5, -60.0)

    def outputs(x: jax.Array) -> jax.Array:
        return logits_local(KEY, certain, x, 1)[0]

    middle = outputs(0.5 * (INPUTS[:4] + INPUTS[4:]))
    np.testing.assert_allclose(middle, 0.5 * (outputs(INPUTS[:4]) + outputs(INPUTS[4:])), rtol=1e-4, atol=1e-5)
    bent = Gaussian(*(dataclasses.replace(part, network=MLP((5,))) for part in (certain.mean, certain.log_var)))
    assert not np.allclose(logits_local(KEY, bent, INPUTS, 1), outputs(INPUTS)[None], atol=1e-2)


def test_a_linear_layer_is_for_dense_networks_and_not_for_clnp() -> None:
    with pytest.raises(VclError, match="--network mlp"):
        VCL(last_hidden="linear", network="conv")
    with pytest.raises(VclError, match="ReLU"):
        make("clnp", {"network": MLP((4,), "linear")}).init(KEY, SPEC)


def test_recipes_of_the_paper_and_of_its_code_differ_where_the_code_does() -> None:
    for benchmark in ("split-mnist", "permuted-mnist"):
        text, code = (
            vcl.configure(benchmark, recipe=recipe).settings["learner"] for recipe in ("paper", "paper-code")
        )
        differing = {name for name in text if text[name] != code[name]}
        assert differing == {"last_hidden", "noise_per", "test_softmax"}
    assert vcl.configure("split-mnist", recipe="previous").learner.hidden == (256, 256)  # type: ignore[attr-defined]
