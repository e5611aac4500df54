import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from vcl.core import StreamSpec
from vcl.nets import MLP, Weights, features, logits, pixels, replace_head, select_head, zeros
from vcl.posteriors.mean_field import Gaussian, logits_local, logits_weight_sampled

SPEC = StreamSpec((5,), "float32", 3, (0, 1), 10)


def random_q(hidden: tuple[int, ...], seed: int = 0) -> Gaussian:
    """Means of size one and standard deviations around 0.4, so that the noise matters."""
    like = select_head(zeros(MLP(hidden), SPEC), 0)
    leaves, structure = jax.tree.flatten(like)
    keys = jax.random.split(jax.random.key(seed), 2 * len(leaves))
    draw = [jax.random.normal(k, a.shape) for k, a in zip(keys, leaves + leaves, strict=True)]
    means, spreads = draw[: len(leaves)], draw[len(leaves) :]
    return Gaussian(
        jax.tree.unflatten(structure, means), jax.tree.unflatten(structure, [-2.0 + 0.3 * s for s in spreads])
    )


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("hidden", [(4,), (4, 3)])
def test_local_reparameterisation_has_the_mean_and_variance_of_weight_sampling(hidden):
    q, x = random_q(hidden), jax.random.normal(jax.random.key(1), (2, 5))
    count = 40_000
    local = logits_local(jax.random.key(2), q, x, count)
    weights = logits_weight_sampled(jax.random.key(3), q, x, count)
    spread = jnp.sqrt((local.var(0) + weights.var(0)) / count)
    assert jnp.all(jnp.abs(local.mean(0) - weights.mean(0)) < 4.5 * spread)
    np.testing.assert_allclose(local.var(0), weights.var(0), rtol=0.06)


def test_noise_is_independent_per_example_only_with_local_reparameterisation():
    q, x = random_q((4,)), jnp.ones((2, 5))
    local = logits_local(jax.random.key(0), q, x, 1)
    weights = logits_weight_sampled(jax.random.key(0), q, x, 1)
    assert not np.allclose(local[0, 0], local[0, 1])
    np.testing.assert_allclose(weights[0, 0], weights[0, 1], rtol=1e-5)


def test_a_linear_last_hidden_layer_has_no_relu_and_the_others_do():
    net = random_q((4, 3)).mean
    linear = dataclasses.replace(net, network=MLP((4, 3), "linear"))
    x = jax.random.normal(jax.random.key(1), (6, 5))
    h = np.maximum(x @ net.body[0].weight + net.body[0].bias, 0.0) @ net.body[1].weight + net.body[1].bias
    np.testing.assert_allclose(features(linear, x), h, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(logits(linear, x), h @ net.head.weight + net.head.bias, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(features(net, x), np.maximum(h, 0.0), rtol=1e-5, atol=1e-5)
    assert (h < 0).any()


@pytest.mark.parametrize("estimator", [logits_local, logits_weight_sampled])
def test_without_variance_both_estimators_are_the_point_network(estimator):
    q = random_q((4, 3))
    certain = Gaussian(q.mean, jax.tree.map(lambda a: jnp.full_like(a, -60.0), q.log_var))
    x = jax.random.normal(jax.random.key(1), (6, 5))
    for draw in estimator(jax.random.key(0), certain, x, 3):
        np.testing.assert_allclose(draw, logits(q.mean, x), rtol=1e-4, atol=1e-5)


def test_the_first_layers_products_are_computed_once_however_many_samples():
    q, x = random_q((4,)), jnp.ones((7, 5))

    def wide_products(samples: int) -> int:
        jaxpr = jax.make_jaxpr(lambda x: logits_local(jax.random.key(0), q, x, samples))(x).jaxpr
        return sum(eqn.primitive.name == "dot_general" and eqn.invars[0].aval.shape == (7, 5) for eqn in jaxpr.eqns)

    assert wide_products(1) == wide_products(10) == 2


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("estimator", [logits_local, logits_weight_sampled])
def test_gradients_are_those_of_finite_differences(estimator):
    q, x = random_q((4,)), jax.random.normal(jax.random.key(1), (3, 5))

    def total(q: Gaussian) -> jax.Array:
        return estimator(jax.random.key(5), jax.tree.map(jnp.asarray, q), x, 2).sum()

    check_grads(total, (q,), order=1, modes=["rev"], atol=1e-4, rtol=1e-4)


def test_gradients_of_weights_are_plain_matrix_products_however_many_samples():
    """A sum over samples and examples as two axes would be compiled to transposed copies and a product."""
    q, x = random_q((4,)), jnp.ones((7, 5))
    gradient = jax.make_jaxpr(jax.grad(lambda q: logits_local(jax.random.key(0), q, x, 3).sum()))(q).jaxpr
    products = [eqn.params["dimension_numbers"] for eqn in gradient.eqns if eqn.primitive.name == "dot_general"]
    assert len(products) == 10
    assert all(len(axes) == 1 for contracted, _ in products for axes in contracted)


def test_heads_are_selected_and_put_back():
    net = zeros(MLP((4,)), SPEC)
    new = jax.tree.map(lambda a: a + 1.0, select_head(net, 1))
    changed = replace_head(net, 1, new)
    assert isinstance(changed, Weights)
    np.testing.assert_array_equal(changed.head.weight[0], 0.0)
    np.testing.assert_array_equal(changed.head.weight[1], 1.0)
    np.testing.assert_array_equal(changed.body[0].weight, 1.0)


def test_bytes_become_numbers_between_zero_and_one_and_floats_stay():
    np.testing.assert_allclose(pixels(jnp.array([[0, 51, 255]], jnp.uint8)), [[0.0, 0.2, 1.0]], rtol=1e-6)
    np.testing.assert_array_equal(pixels(jnp.array([[-3.0, 300.0]])), [[-3.0, 300.0]])
