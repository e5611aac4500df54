"""Layers and networks as values: convolutions against jax's own, curvature against per-example gradients."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import blobs, make_stream
from test_methods import KEY, METHODS, each_method, small

from vcl.benchmarks.streams import from_arrays, joint
from vcl.core import StreamSpec
from vcl.curvature import diagonal_fisher, kronecker_factors
from vcl.errors import VclError
from vcl.methods import make, settings_of
from vcl.model import Model
from vcl.nets import (
    MLP,
    Conv,
    ConvNet,
    Dense,
    Flatten,
    Network,
    Pool,
    Weights,
    cross_entropy,
    logits,
    random,
    select_head,
)
from vcl.nets.network import from_json, to_json
from vcl.posteriors import Family, MeanField
from vcl.posteriors.mean_field import Gaussian, logits_local, logits_weight_sampled
from vcl.training import Data, Fitter, to_device

SPEC = StreamSpec((2, 5, 4), "float32", 3, (0,), 30)
NETWORK = Network((Conv(4, kernel=3), Pool(2), Conv(3, kernel=2, stride=2), Flatten(), Dense(5)))


def drawn(seed: int = 0, spec: StreamSpec = SPEC, network: Network = NETWORK) -> Weights:
    weights = select_head(random(jax.random.key(seed), network, spec), 0)
    keys = iter(jax.random.split(jax.random.key(seed + 1), 20))
    return jax.tree.map(lambda a: a + 0.1 * jax.random.normal(next(keys), a.shape), weights)


@pytest.mark.parametrize(
    ("kernel", "stride", "shape"), [(3, 1, (7, 6)), (2, 1, (5, 5)), (3, 2, (8, 7)), (1, 1, (3, 3))]
)
@pytest.mark.usefixtures("float64")
def test_a_convolution_is_jax_s_own(kernel, stride, shape):
    images = jax.random.normal(KEY, (2, *shape, 3))
    weight = jax.random.normal(jax.random.key(1), (kernel**2 * 3, 4))
    found = Conv(4, kernel, stride).gather(images) @ weight
    expected = jax.lax.conv_general_dilated(
        images,
        weight.reshape(kernel, kernel, 3, 4),
        (stride, stride),
        "SAME",
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-9)


def test_pooling_takes_the_largest_and_drops_what_does_not_fill_a_square():
    image = jnp.arange(15.0).reshape(3, 5, 1)
    np.testing.assert_array_equal(Pool(2).gather(image)[..., 0], [[6.0, 8.0]])


@pytest.mark.parametrize("place", [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_pooling_does_not_hide_what_is_not_a_number(place):
    image = jnp.ones((2, 2, 1)).at[place].set(jnp.nan)
    assert jnp.isnan(Pool(2).gather(image)).all()


def test_the_gradient_of_pooling_goes_to_one_place_of_each_square():
    image = jnp.asarray([[1.0, 2.0, 5.0, 5.0], [3.0, 0.0, 5.0, 5.0]])[..., None]
    slopes = jax.grad(lambda h: Pool(2).gather(h).sum())(image)[..., 0]
    np.testing.assert_array_equal(slopes, [[0, 0, 1, 0], [1, 0, 0, 0]])


def test_channels_come_first_in_the_data_and_last_in_the_network():
    weights = drawn()
    image = jax.random.normal(KEY, (1, 40))
    shifted = image.reshape(2, 5, 4).at[1, 2, 3].add(1.0).reshape(1, 40)
    one = Network((Conv(1, kernel=1), Flatten()))
    read = select_head(random(KEY, one, SPEC), 0)
    read = read.with_layers([dataclasses.replace(read.body[0], weight=jnp.array([[0.0], [1.0]])), read.head])
    from vcl.nets import features

    change = (features(read, shifted) - features(read, image)).reshape(5, 4)
    assert np.count_nonzero(change) <= 1
    assert logits(weights, image).shape == (1, 3)


def test_shapes_that_do_not_fit_are_refused():
    with pytest.raises(VclError, match="Flatten"):
        Network((Conv(3), Dense(4))).shapes((28, 28))
    with pytest.raises(VclError, match="Flatten"):
        Network((Conv(3),)).shapes((28, 28))
    with pytest.raises(VclError, match="needs images"):
        ConvNet((3,), (4,)).shapes((54,))
    with pytest.raises(VclError, match="does not fit"):
        ConvNet((3, 3, 3), (4,)).shapes((4, 4))
    with pytest.raises(VclError, match="at least one unit"):
        MLP((0,))


def test_networks_are_written_and_read_as_json_but_not_layers_of_ones_own():
    assert from_json(json.loads(json.dumps(to_json(NETWORK)))) == NETWORK
    learner = make("vcl", {"network": NETWORK})
    assert make("vcl", settings_of(learner)) == learner

    @dataclasses.dataclass(frozen=True)
    class Mine(Pool):
        """A layer of the user's."""

    with pytest.raises(VclError, match="cannot be written"):
        to_json(Network((Mine(), Flatten())))


@pytest.mark.usefixtures("float64")
def test_local_reparameterisation_of_convolutions_has_the_moments_of_each_place():
    """One convolution and no ReLU above it that mixes places: means and variances are those of sampled weights."""
    network = Network((Conv(2, kernel=2), Flatten()))
    mean = drawn(network=network)
    q = Gaussian(mean, jax.tree.map(lambda a: jnp.full_like(a, -2.0), mean))
    family, count = MeanField(), 20_000
    h = Conv(2, kernel=2).gather(jax.random.normal(KEY, (1, 5, 4, 2)))
    draws = family.preactivation(jax.random.key(1), family.layers(q)[0], h, count)
    layer = q.mean.body[0]
    centre = h @ layer.weight + layer.bias
    variance = (h**2) @ jnp.exp(q.log_var.body[0].weight) + jnp.exp(q.log_var.body[0].bias)
    np.testing.assert_allclose(draws.mean(0), centre, atol=5 * float(jnp.sqrt(variance.max() / count)))
    np.testing.assert_allclose(draws.var(0), variance, rtol=0.1)
    assert isinstance(family, Family)


@pytest.mark.parametrize("estimator", [logits_local, logits_weight_sampled])
def test_without_variance_a_bayesian_convolution_is_the_point_network(estimator):
    mean = drawn()
    q = Gaussian(mean, jax.tree.map(lambda a: jnp.full_like(a, -60.0), mean))
    x = jax.random.normal(KEY, (6, 40))
    for draw in estimator(KEY, q, x, 3):
        np.testing.assert_allclose(draw, logits(mean, x), rtol=1e-4, atol=1e-5)


def per_example(weights: Weights, data: Data):
    """E_y over the model's own labels of each example's gradient, weighted by √p(y | x): (labels, examples, …)."""

    def gradient(x, y):
        return jax.grad(lambda w: cross_entropy(logits(w, x[None]), y[None])[0])(weights)

    p = jax.nn.softmax(logits(weights, data.inputs))
    classes = jnp.arange(p.shape[1])
    gradients = jax.jit(jax.vmap(lambda y: jax.vmap(lambda x: gradient(x, y))(data.inputs)))(classes)
    return p.T, gradients


@pytest.mark.usefixtures("float64")
def test_the_diagonal_fisher_of_a_convolution_is_the_mean_squared_gradient():
    weights = drawn()
    data = Data(jax.random.normal(KEY, (7, 40)), jnp.zeros(7, jnp.int32), jnp.int32(7))
    p, gradients = per_example(weights, data)
    found = diagonal_fisher(KEY, weights, data)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(gradients), strict=True):
        np.testing.assert_allclose(a, jnp.einsum("yn,yn...->...", p, b**2) / 7, rtol=1e-5, atol=1e-12)


@pytest.mark.usefixtures("float64")
def test_kronecker_factors_of_a_convolution_with_one_place_are_those_of_a_dense_layer():
    image = StreamSpec((2, 2), "float32", 3, (0,), 9)
    conv = drawn(spec=image, network=Network((Conv(4, kernel=2, stride=2), Flatten())))
    dense = drawn(spec=image, network=MLP((4,)))
    dense = dense.with_layers(conv.layers)
    data = Data(jax.random.normal(KEY, (9, 4)), jnp.zeros(9, jnp.int32), jnp.int32(9))
    for a, b in zip(*(kronecker_factors(KEY, w, data) for w in (conv, dense)), strict=True):
        np.testing.assert_allclose(a.inputs, b.inputs, rtol=1e-6)
        np.testing.assert_allclose(a.outputs, b.outputs, rtol=1e-6, atol=1e-12)


@pytest.mark.usefixtures("float64")
def test_kronecker_factors_of_a_convolution_sum_inputs_and_average_gradients_over_places():
    weights = drawn()
    data = Data(jax.random.normal(KEY, (6, 40)), jnp.zeros(6, jnp.int32), jnp.int32(6))
    pair = kronecker_factors(KEY, weights, data)[0]
    patches = Conv(4).gather(jnp.moveaxis(data.inputs.reshape(6, 2, 5, 4), 1, -1)).reshape(6 * 20, -1)
    np.testing.assert_allclose(pair.inputs[:-1, :-1], patches.T @ patches / 6, rtol=1e-6)
    assert float(pair.inputs[-1, -1]) == pytest.approx(20.0)


def image_stream():
    """The small tasks, as images of 2 × 3."""
    tasks = [(*blobs(t, 40), *blobs(t, 20)) for t in range(2)]
    return from_arrays([(x.reshape(-1, 2, 3), y, a.reshape(-1, 2, 3), b) for x, y, a, b in tasks])


@each_method
def test_it_learns_with_convolutions_or_says_why_not(method):
    if METHODS[method].dense_only:
        with pytest.raises(VclError, match="dense layers only"):
            small(method, network="conv", channels=(3,))
        return
    learner, stream = small(method, network="conv", channels=(3,), hidden=(5,), epochs=1), image_stream()
    stream = joint(stream) if learner.joint else stream
    state = learner.init(KEY, stream.spec)
    for stage in range(2):
        data = to_device(stream.train(stage), stream.spec.capacity)
        state = learner.observe(jax.random.fold_in(KEY, stage), state, stream.task(stage), data, Fitter())
    params = learner.readout(KEY, state, stream.spec.task(0), Fitter())
    draws = jax.jit(learner.predict)(KEY, params, jnp.asarray(stream.test(0).inputs))
    np.testing.assert_allclose(jnp.exp(draws).sum(-1), 1.0, rtol=1e-5)


def test_a_network_of_ones_own_is_learnt_with():
    x, y = blobs(0, 200)
    model = Model(METHODS["vcl"](network=Network((Dense(6), Dense(5))), epochs=80, batch_size=32))
    assert model.learn(x, y).score(x, y) > 0.9
    assert make_stream().spec.input_size == 6
