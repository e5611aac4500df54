"""The Fisher information against dense ones, which automatic differentiation makes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from vcl.curvature import diagonal_fisher, kronecker_factors
from vcl.nets import Affine, Weights, from_layers, logits
from vcl.training import Data

KEY = jax.random.key(0)
CLASSES = 3

pytestmark = pytest.mark.usefixtures("float64")


def draw_network(*widths: int) -> Weights:
    keys = jax.random.split(jax.random.key(1), 2 * len(widths))
    layers = [
        Affine(jax.random.normal(keys[2 * n], (i, o)), jax.random.normal(keys[2 * n + 1], (o,)))
        for n, (i, o) in enumerate(zip(widths, (*widths[1:], CLASSES), strict=True))
    ]
    return from_layers(layers)


def draw_data(examples: int) -> Data:
    inputs = jax.random.normal(jax.random.key(2), (examples, 4))
    labels = jax.random.randint(jax.random.key(3), (examples,), 0, CLASSES)
    return Data(inputs, labels.astype(jnp.int32), jnp.int32(examples))


def dense_fisher(flat, function, inputs):
    """E_x[Jᵀ (diag p - p pᵀ) J] with the Jacobian J of `function(flat, x)`, the logits: E_y is taken exactly."""

    @jax.jit
    def of_one(x):
        jacobian = jax.jacobian(function)(flat, x)
        p = jax.nn.softmax(function(flat, x))
        return jacobian.T @ (jnp.diag(p) - jnp.outer(p, p)) @ jacobian

    return np.mean([of_one(x) for x in inputs], axis=0)


def of_all_weights(network):
    flat, unravel = ravel_pytree(network)
    return flat, lambda flat, x: logits(unravel(flat), x[None])[0]


def of_layer(network, number):
    """One layer's weights, the bias as their last row; the others stay."""
    layers = [*network.body, network.head]
    rows = jnp.concatenate([layers[number].weight, layers[number].bias[None]])

    def function(flat, x):
        new = flat.reshape(rows.shape)
        changed = [*layers[:number], Affine(new[:-1], new[-1]), *layers[number + 1 :]]
        return logits(from_layers(changed), x[None])[0]

    return rows.reshape(-1), function


def test_the_exact_diagonal_is_that_of_the_hessian_of_a_linear_softmax_model():
    network, data = draw_network(4), draw_data(20)
    flat, function = of_all_weights(network)

    def nll(flat):
        outputs = jax.vmap(function, (None, 0))(flat, data.inputs)
        return -jnp.mean(jax.nn.log_softmax(outputs)[jnp.arange(20), data.labels])

    hessian = jax.jit(jax.hessian(nll))(flat)
    np.testing.assert_allclose(ravel_pytree(diagonal_fisher(KEY, network, data))[0], jnp.diag(hessian), rtol=1e-9)


def test_the_exact_diagonal_is_that_of_the_dense_fisher_of_a_deep_network():
    network, data = draw_network(4, 5, 6), draw_data(20)
    dense = dense_fisher(*of_all_weights(network), data.inputs)
    np.testing.assert_allclose(
        ravel_pytree(diagonal_fisher(KEY, network, data))[0], np.diag(dense), rtol=1e-9, atol=1e-14
    )


def test_the_empirical_diagonal_is_the_mean_of_squared_gradients_at_the_true_labels():
    network, data = draw_network(4, 5, 6), draw_data(20)
    flat, function = of_all_weights(network)
    gradients = jax.jit(
        jax.vmap(jax.grad(lambda flat, x, y: jax.nn.log_softmax(function(flat, x))[y]), (None, 0, 0))
    )(flat, data.inputs, data.labels)
    found = diagonal_fisher(KEY, network, data, "empirical")
    np.testing.assert_allclose(ravel_pytree(found)[0], jnp.mean(gradients**2, axis=0), rtol=1e-9, atol=1e-14)


@pytest.mark.parametrize("kind", ["exact", "empirical"])
@pytest.mark.parametrize("curvature", [diagonal_fisher, kronecker_factors])
def test_neither_the_batch_size_nor_filling_changes_it(kind, curvature):
    network, data = draw_network(4, 5), draw_data(20)
    with_filling = Data(
        jnp.pad(data.inputs, ((0, 9), (0, 0)), constant_values=7.0), jnp.pad(data.labels, (0, 9)), data.size
    )
    whole, _ = ravel_pytree(curvature(KEY, network, data, kind, 20))
    pieces, _ = ravel_pytree(curvature(KEY, network, data, kind, 3))
    filled, _ = ravel_pytree(curvature(KEY, network, with_filling, kind, 3))
    np.testing.assert_allclose(pieces, whole, rtol=1e-9, atol=1e-14)
    np.testing.assert_allclose(filled, whole, rtol=1e-9, atol=1e-14)


@pytest.mark.parametrize("batch_size", [20, 3])
def test_drawn_labels_give_the_exact_one_on_average_at_any_batch_size(batch_size):
    network, data, count = draw_network(4, 5), draw_data(20), 3000
    exact, _ = ravel_pytree(diagonal_fisher(KEY, network, data))
    draws = jax.jit(jax.vmap(lambda k: ravel_pytree(diagonal_fisher(k, network, data, "sampled", batch_size))[0]))(
        jax.random.split(KEY, count)
    )
    assert jnp.all(jnp.abs(draws.mean(0) - exact) <= 4.5 * draws.std(0) / count**0.5 + 1e-12)
    assert draws.std(0).max() > 0


@pytest.mark.parametrize("layer", [0, 1, 2])
def test_kronecker_factors_of_one_example_give_the_exact_block_of_every_layer(layer):
    """a does not depend on the label, so that E_y[a aᵀ ⊗ g gᵀ] = a aᵀ ⊗ E_y[g gᵀ]."""
    network, data = draw_network(4, 5, 6), draw_data(1)
    pair = kronecker_factors(KEY, network, data)[layer]
    dense = dense_fisher(*of_layer(network, layer), data.inputs)
    assert np.abs(dense).max() > 1e-3
    np.testing.assert_allclose(np.kron(pair.inputs, pair.outputs), dense, rtol=1e-9, atol=1e-14)


def test_kronecker_factors_of_many_examples_are_exact_where_gradients_do_not_depend_on_inputs():
    """An output layer of zeros answers 1 / classes whatever the input: only there is g the same for all examples."""
    network, data = draw_network(4, 5), draw_data(20)
    zero_head = network.with_layers([*network.body, jax.tree.map(jnp.zeros_like, network.head)])
    for net, exact in [(zero_head, True), (network, False)]:
        pair = kronecker_factors(KEY, net, data)[-1]
        dense = dense_fisher(*of_layer(net, 1), data.inputs)
        assert np.allclose(np.kron(pair.inputs, pair.outputs), dense, rtol=1e-9, atol=1e-14) == exact
