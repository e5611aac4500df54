"""iCaRL: herding, the budget of exemplars, the targets, nearest means."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import blobs, make_stream

from vcl import memory
from vcl.benchmarks.streams import from_arrays, online
from vcl.errors import VclError
from vcl.methods.icarl import Distillation, ICaRL, Prototypes, choose_exemplars, targets
from vcl.methods.variants.icarl_labels import ICaRLLabels
from vcl.nets import MLP, Affine, from_layers, logits_by_head, random
from vcl.training import Batch, Data, Fitter, to_device

KEY = jax.random.key(0)
SETTINGS = {"hidden": (8,), "epochs": 2, "batch_size": 16, "exemplars": 20, "sharpness": 3.0}
NEUTRAL = {"emphasis": 1.0, "distillation": 1.0, "init_scale": 1.0}
LEARNER = ICaRL(**SETTINGS)
VARIANT = ICaRLLabels(**SETTINGS, **NEUTRAL)


def batch_of(tasks, labels, inputs=None, mask=None) -> Batch:
    n = len(labels)
    inputs = jnp.zeros((n, 6)) if inputs is None else inputs
    mask = jnp.ones(n, bool) if mask is None else mask
    return Batch(inputs, jnp.array(labels), mask, jnp.int32(n), jnp.array(tasks))


def observe(learner, stream):
    states = [learner.init(KEY, stream.spec)]
    for stage, task in enumerate(stream.stages):
        data = to_device(stream.train(stage), stream.spec.capacity)
        states.append(learner.observe(KEY, states[-1], stream.spec.task(task), data, Fitter()))
    return states


def greedy(points, most):
    """Herding, word for word."""
    chosen = []
    for k in range(min(most, len(points))):
        left = [i for i in range(len(points)) if i not in chosen]
        means = [points[[*chosen, i]].sum(0) / (k + 1) for i in left]
        chosen.append(left[np.argmin([np.sum((mean - points.mean(0)) ** 2) for mean in means])])
    return chosen


@pytest.mark.usefixtures("float64")
def test_herding_is_the_greedy_search_in_every_group():
    rng = np.random.default_rng(0)
    points = rng.normal(size=(60, 5)) + 3.0
    groups = rng.integers(-1, 4, 60)
    groups[groups == 2] = 0
    groups[:4] = 2
    places = np.asarray(memory.herding(jnp.asarray(points), jnp.asarray(groups), 3, 7))
    for group in range(3):
        rows = np.flatnonzero(groups == group)
        order = rows[np.argsort(places[rows], kind="stable")]
        expected = rows[greedy(points[rows], 7)]
        np.testing.assert_array_equal(order[: len(expected)], expected)
        np.testing.assert_array_equal(np.sort(places[rows])[: len(expected)], np.arange(len(expected)))
        assert (places[np.setdiff1d(rows, expected)] == 60).all()
        nearest = rows[np.argmin(np.sum((points[rows] - points[rows].mean(0)) ** 2, axis=1))]
        assert places[nearest] == 0
    assert (places[(groups < 0) | (groups == 3)] == 60).all()


def test_the_mean_of_herded_rows_is_nearer_than_that_of_random_ones():
    points = np.random.default_rng(1).normal(size=(200, 10)).astype(np.float32)
    places = np.asarray(memory.herding(jnp.asarray(points), jnp.zeros(200, int), 1, 10))

    def miss(rows):
        return np.linalg.norm(points[rows].mean(0) - points.mean(0))

    assert miss(places < 10) < 0.5 * miss(np.arange(10))


def rows_of(state, pair):
    """The exemplars of a class in a task, in herding order; of two classes, pair = 2 · task + class."""
    exemplars = state.exemplars
    size = int(exemplars.size)
    mine = np.flatnonzero(np.asarray(2 * exemplars.tasks + exemplars.labels)[:size] == pair)
    places = np.asarray(exemplars.places)[mine]
    np.testing.assert_array_equal(np.sort(places), np.arange(len(mine)))
    return np.asarray(exemplars.inputs)[mine[np.argsort(places)]]


@pytest.mark.parametrize("shared_head", [False, True])
def test_the_budget_is_shared_evenly_and_shrinking_keeps_the_first(shared_head):
    stream = make_stream(shared_head=shared_head)
    _, *states = observe(LEARNER, stream)
    for number, state in enumerate(states, start=1):
        share = 20 // (2 * number)
        assert LEARNER.footprint(state).stored_examples == 2 * number * share <= 20
        for pair in range(2 * number):
            rows = rows_of(state, pair)
            assert len(rows) == share
            train = stream.train(pair // 2)
            of_class = train.inputs[train.labels == pair % 2]
            assert all((row == of_class).all(1).any() for row in rows)
            if pair < 2 * (number - 1):
                np.testing.assert_array_equal(rows, rows_of(states[number - 2], pair)[:share])


def test_a_class_with_few_examples_keeps_what_there_is():
    network = random(KEY, MLP((4,)), make_stream().spec)
    inputs = jax.random.normal(KEY, (12, 6))
    labels = jnp.array([0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0])
    mixed = Data(inputs, labels, jnp.int32(10), jnp.zeros(12, jnp.int32))
    kept = choose_exemplars(network, jnp.int32(0), 2, 1, mixed, jnp.zeros(12, jnp.int32), 8)
    assert int(kept.size) == 6
    np.testing.assert_array_equal(np.bincount(kept.labels[:6]), [2, 4])


def test_a_task_that_arrives_bit_by_bit_stays_within_the_budget():
    stream = online(make_stream(shared_head=True), 12, seed=0)
    states = observe(LEARNER, stream)
    assert all(int(state.exemplars.size) <= 20 for state in states)
    kept = states[-1].exemplars
    assert {*np.asarray(2 * kept.tasks + kept.labels)[: int(kept.size)]} == set(range(6))
    params = LEARNER.readout(KEY, states[-1], stream.spec.task(0), Fitter())
    assert bool(params.known.all())


def test_too_small_a_budget_is_refused():
    with pytest.raises(VclError, match="--exemplars"):
        ICaRL(exemplars=5).init(KEY, make_stream().spec)


def test_targets_are_old_outputs_for_old_classes_and_labels_for_new_ones():
    before = random(KEY, MLP((4,)), make_stream().spec)
    outputs = jax.random.normal(KEY, (2, 1, 4))
    said = jax.nn.sigmoid(outputs)
    old, new = jnp.array([[True, True, False, False]]), jnp.array([[False, False, True, True]])
    heads = jnp.zeros(2, jnp.int32)
    # An exemplar of class 1 of task 0, an example of class 2 of task 1.
    z = targets(Distillation(before, old, new, heads, jnp.int32(1)), outputs, batch_of([0, 1], [1, 2]))
    np.testing.assert_allclose(z[:, :, :2], said[:, :, :2])
    np.testing.assert_allclose(z[:, 0, 2:], [[0, 0], [1, 0]])


@pytest.mark.parametrize("share", [0.0, 0.25])
def test_in_the_variant_old_outputs_have_only_their_share_in_the_targets_of_old_classes(share):
    """By the gradient of the loss: sigmoid(outputs) - targets."""
    spec = make_stream().spec
    previous = random(jax.random.key(1), MLP((4,)), spec)
    old, new = jnp.array([[True, False]] * 3), jnp.array([[False, True]] * 3)
    before = Distillation(previous, old, new, jnp.zeros(3, jnp.int32), jnp.int32(1))
    batch = batch_of([0, 1], [0, 1], jax.random.normal(KEY, (2, 6)))
    network = random(KEY, MLP((4,)), spec)
    learner = replace(VARIANT, distillation=share)
    found = jax.jit(jax.grad(lambda bias: learner.loss(KEY, with_head_bias(network, bias), before, batch)))(
        network.head.bias
    )
    said, now = (np.asarray(jax.nn.sigmoid(logits_by_head(net, batch.inputs))) for net in (previous, network))
    labels = np.array([[1, 0], [0, 1]])
    wanted = np.stack([share * said[:, 0, 0] + (1 - share) * labels[:, 0], labels[:, 1]], axis=1)
    np.testing.assert_allclose(found[0], np.mean(now[:, 0] - wanted, axis=0), rtol=1e-4, atol=1e-6)


def with_head_bias(network, bias):
    return network.with_layers([*network.body, Affine(network.head.weight, bias)])


def test_the_first_weights_have_their_scale():
    spec = make_stream().spec
    usual, small = (replace(VARIANT, init_scale=scale).init(KEY, spec).network for scale in (1.0, 0.1))
    for a, b in zip(jax.tree.leaves(usual), jax.tree.leaves(small), strict=True):
        np.testing.assert_allclose(b, 0.1 * np.asarray(a), rtol=1e-6)


@pytest.mark.parametrize("settings", [{"distillation": 1.5}, {"distillation": -0.1}, {"init_scale": 0.0}])
def test_settings_without_meaning_are_refused(settings):
    with pytest.raises(VclError, match=next(iter(settings)).replace("_", "-")):
        ICaRLLabels(**settings)


def test_targets_of_classes_that_come_again_are_labels_for_the_task_and_old_outputs_for_exemplars():
    before = random(KEY, MLP((4,)), make_stream().spec)
    outputs = jax.random.normal(KEY, (2, 1, 2))
    every = jnp.ones((1, 2), bool)
    previous = Distillation(before, every, every, jnp.zeros(2, jnp.int32), jnp.int32(1))
    z = targets(previous, outputs, batch_of([0, 1], [1, 1]))
    np.testing.assert_allclose(z[0], jax.nn.sigmoid(outputs[0]))
    np.testing.assert_allclose(z[1], [[0, 1]])


def test_targets_with_a_head_for_each_task():
    before = random(KEY, MLP((4,)), make_stream().spec)
    outputs = jax.random.normal(KEY, (2, 3, 2))
    said = jax.nn.sigmoid(outputs)
    old, new = jnp.zeros((3, 2), bool).at[0].set(True), jnp.zeros((3, 2), bool).at[1].set(True)
    z = targets(Distillation(before, old, new, jnp.arange(3), jnp.int32(1)), outputs, batch_of([0, 1], [0, 1]))
    np.testing.assert_allclose(z[:, 0], said[:, 0])
    np.testing.assert_allclose(z[:, 1], [[0, 0], [0, 1]])


def test_the_loss_is_the_binary_cross_entropy_in_which_exemplars_have_their_emphasis():
    spec = make_stream().spec
    network, previous = random(KEY, MLP((4,)), spec), random(jax.random.key(1), MLP((4,)), spec)
    old, new = jnp.zeros((3, 2), bool).at[0].set(True), jnp.zeros((3, 2), bool).at[1].set(True)
    before = Distillation(previous, old, new, jnp.arange(3), jnp.int32(1))
    inputs = jax.random.normal(KEY, (3, 6))
    batch = batch_of([0, 1, 0], [0, 1, 1], inputs, jnp.array([True, True, False]))
    g = jax.nn.sigmoid(logits_by_head(network, inputs))[:2, :2]
    z = targets(before, logits_by_head(previous, inputs), batch)[:2, :2]
    entropies = -np.sum(z * np.log(g) + (1 - z) * np.log(1 - g), axis=(1, 2))
    np.testing.assert_allclose(LEARNER.loss(KEY, network, before, batch), np.mean(entropies), rtol=1e-5)
    loss = replace(VARIANT, emphasis=5.0).loss(KEY, network, before, batch)
    np.testing.assert_allclose(loss, (5.0 * entropies[0] + entropies[1]) / 2, rtol=1e-5)


@pytest.mark.parametrize("departure", [{"emphasis": 5.0}, {"distillation": 0.1}, {"init_scale": 0.1}])
def test_the_variant_with_neutral_settings_is_the_published_method_and_otherwise_it_is_not(departure):
    stream = make_stream()
    learners = (LEARNER, VARIANT, replace(VARIANT, **departure))
    published, neutral, other = (jax.tree.leaves(observe(learner, stream)[2].network) for learner in learners)
    assert all(np.allclose(a, b, atol=1e-6) for a, b in zip(published, neutral, strict=True))
    assert not all(np.allclose(a, b, atol=1e-4) for a, b in zip(published, other, strict=True))


def test_outputs_of_classes_not_yet_seen_stay_untouched():
    first, after, _, _ = observe(LEARNER, make_stream())
    np.testing.assert_array_equal(after.network.head.weight[1:], first.network.head.weight[1:])
    assert not np.allclose(after.network.head.weight[0], first.network.head.weight[0])


def test_prediction_is_by_the_nearest_mean():
    rng = np.random.default_rng(0)
    weight, inputs = rng.normal(size=(6, 5)), rng.normal(size=(30, 6))
    means = rng.normal(size=(2, 4, 5))
    means /= np.linalg.norm(means, axis=-1, keepdims=True)
    known = np.array([[True, True, False, False], [True, False, True, False]])
    arrays = [jnp.asarray(a, jnp.float32) for a in (weight, np.full(5, 3.0), means, inputs)]
    network = from_layers([Affine(*arrays[:2]), Affine(jnp.zeros((5, 4)), jnp.zeros(4))])
    log_probs = LEARNER.predict(KEY, Prototypes(network, arrays[2], jnp.asarray(known)), arrays[3])[0]
    points = np.maximum(inputs @ weight + 3.0, 0)
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    squared = ((points[:, None, None] - means) ** 2).sum(-1)
    nearest = np.where(known, squared, np.inf).min(1)
    p = np.exp(-3.0 * nearest)
    np.testing.assert_allclose(np.exp(log_probs), p / p.sum(1, keepdims=True), atol=1e-5)
    assert bool(jnp.isfinite(log_probs).all())


def test_prototypes_are_the_normalised_means_of_normalised_features():
    stream = make_stream()
    state = observe(LEARNER, stream)[-1]
    params = LEARNER.readout(KEY, state, stream.spec.task(1), Fitter())
    (layer,) = state.network.body
    points = np.maximum(rows_of(state, 3) @ layer.weight + layer.bias, 0)
    mean = (points / np.linalg.norm(points, axis=1, keepdims=True)).mean(0)
    np.testing.assert_allclose(params.means[1, 1], mean / np.linalg.norm(mean), atol=1e-5)
    np.testing.assert_array_equal(params.known, [[False] * 2, [True] * 2, [False] * 2])


@pytest.mark.parametrize("shared_head", [False, True])
def test_before_any_data_nothing_is_likelier_than_the_rest(shared_head):
    stream = make_stream(shared_head=shared_head)
    params = LEARNER.readout(KEY, LEARNER.init(KEY, stream.spec), stream.spec.task(1), Fitter())
    log_probs = LEARNER.predict(KEY, params, jnp.asarray(stream.test(1).inputs))
    np.testing.assert_allclose(log_probs, np.log(0.5), atol=1e-6)


def test_classes_not_yet_seen_are_not_predicted():
    inputs, labels = blobs(0)
    stream = from_arrays(
        [(inputs, labels, inputs, labels), (inputs, labels + 2, inputs, labels + 2)], shared_head=True
    )
    assert stream.spec.scenario == "class"
    learner = ICaRL(hidden=(8,), epochs=2, batch_size=16, exemplars=4)
    state = observe(learner, stream)[1]
    params = learner.readout(KEY, state, stream.spec.task(0), Fitter())
    probabilities = np.exp(learner.predict(KEY, params, jnp.asarray(inputs)))[0]
    assert probabilities[:, 2:].max() < 1e-6
    np.testing.assert_allclose(probabilities.sum(1), 1.0, rtol=1e-5)
