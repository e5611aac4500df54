"""CLNP: which units are kept, what is frozen, and what old tasks answer."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import make_stream

from vcl.core import StreamSpec
from vcl.errors import VclError
from vcl.methods.clnp import CLNP, CLNPState, Masks, cut, highest, release, set_aside
from vcl.methods.variants.clnp_recovery import CLNPRecovery
from vcl.nets import Affine, Weights, from_layers, logits
from vcl.training import Batch, Data, Fitter, to_device

KEY = jax.random.key(0)
SETTINGS = {
    "hidden": (12, 9),
    "epochs": 20,
    "batch_size": 16,
    "learning_rate": 0.01,
    "margin": 0.05,
    "held_out": 0.3,
}
LEARNER = CLNP(**SETTINGS, strength=0.003)
TASKS = 3
PREDICT = jax.jit(LEARNER.predict)


@pytest.fixture(scope="module")
def stream():
    return make_stream(shared_head=True)


def observe(state, stream, stage, learner=LEARNER):
    data = to_device(stream.train(stage), stream.spec.capacity)
    return learner.observe(jax.random.fold_in(KEY, stage), state, stream.spec.task(stage), data, Fitter())


@pytest.fixture(scope="module")
def states(stream):
    found = [LEARNER.init(KEY, stream.spec)]
    for stage in range(TASKS):
        found.append(observe(found[-1], stream, stage))
    return found


def log_probs(state, stream, task):
    params = LEARNER.readout(KEY, state, stream.spec.task(task), Fitter())
    return PREDICT(KEY, params, jnp.asarray(stream.test(task).inputs))


def random_network(key, widths=(6, 12, 9, 2)) -> Weights:
    layers = [
        Affine(jax.random.normal(k, (i, o)), jax.random.normal(k, (o,)))
        for k, (i, o) in zip(jax.random.split(key, len(widths) - 1), itertools.pairwise(widths), strict=True)
    ]
    return from_layers(layers)


def test_each_task_keeps_some_units_and_leaves_some(states):
    kept = [[int(a.sum()) for a in state.active] for state in states]
    assert kept[0] == [0, 0]
    assert all(0 < n < width for n, width in zip(kept[1], LEARNER.hidden, strict=True))
    assert any(a < b for a, b in zip(kept[1], kept[2], strict=True))
    for before, after in itertools.pairwise(states):
        assert all(bool(jnp.all(new | ~old)) for old, new in zip(before.active, after.active, strict=True))


def test_later_tasks_change_no_bit_of_what_old_ones_answer(stream, states):
    for task in range(TASKS - 1):
        first, *later = (log_probs(state, stream, task) for state in states[task + 1 :])
        for answer in later:
            np.testing.assert_array_equal(first, answer)
    # The network itself has changed all the same.
    assert not np.array_equal(states[1].network.body[0].weight, states[2].network.body[0].weight)
    assert not np.array_equal(log_probs(states[0], stream, 0), log_probs(states[1], stream, 0))


def test_weights_into_active_units_are_frozen_and_those_from_free_units_are_zero(states):
    for before, after in itertools.pairwise(states):
        for old, new, active in zip(before.network.body, after.network.body, before.active, strict=True):
            np.testing.assert_array_equal(old.weight[:, active], new.weight[:, active])
            np.testing.assert_array_equal(old.bias[active], new.bias[active])
    for task, state in enumerate(states[1:]):
        upper = state.network.body[1].weight
        into_active = upper[:, state.active[1]]
        assert not into_active[~state.active[0]].any()
        assert into_active[state.active[0]].any()
        assert not state.network.head.weight[task][~state.active[1]].any()
        # Free units read active ones: what was learnt can be used again.
        assert (upper[state.active[0]][:, ~state.active[1]] != 0).all()


def test_masks_hold_back_gradients_and_signals(stream):
    before = random_network(KEY)
    network = before.with_layers([*release(KEY, before, (jnp.arange(12) < 5, jnp.arange(9) < 4)).body, before.head])
    free = (jnp.arange(12) >= 5, jnp.arange(9) >= 4)
    used = (jnp.arange(12) < 8, jnp.arange(9) < 7)
    examples = stream.train(0)
    labels = jnp.asarray(examples.labels, jnp.int32)
    batch = Batch(jnp.asarray(examples.inputs), labels, jnp.ones(60, bool), jnp.int32(60))

    @jax.jit
    def loss(network, used, strength):
        return LEARNER.loss(KEY, network, Masks(free, used, jnp.float32(strength)), batch)

    @jax.jit
    def loss_per_input(network, used, strength):
        return CLNPRecovery(**SETTINGS).loss(KEY, network, Masks(free, used, jnp.float32(strength)), batch)

    def plain(network):
        """The same by masks on a copy, with all gradients."""
        body = tuple(
            Affine(jnp.where(mask, layer.weight, 0.0), jnp.where(mask, layer.bias, 0.0))
            for layer, mask in zip(network.body, used, strict=True)
        )
        probabilities = jax.nn.log_softmax(logits(network.with_layers([*body, network.head]), batch.inputs))
        return -jnp.mean(probabilities[jnp.arange(60), labels])

    objective, found = jax.jit(jax.value_and_grad(loss))(network, used, 0.0)
    expected_objective, expected = jax.jit(jax.value_and_grad(plain))(network)
    np.testing.assert_allclose(objective, expected_objective, rtol=1e-5)
    np.testing.assert_allclose(found.head.weight, expected.head.weight, rtol=1e-4, atol=1e-6)
    for mine, all_of_it, learns, passes in zip(found.body, expected.body, free, used, strict=True):
        np.testing.assert_allclose(mine.weight, all_of_it.weight * learns, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(mine.bias, all_of_it.bias * learns, rtol=1e-4, atol=1e-6)
        assert not mine.weight[:, ~passes].any()
        assert mine.weight[:, learns & passes].any()

    # The penalty: the L1 norm of what comes into free units; in the variant, per input.
    penalty = per_input = 0.0
    for layer, f in zip([*network.body, network.head], [*free, jnp.ones(2, bool)], strict=True):
        total = np.abs(layer.weight[:, f]).sum() + np.abs(layer.bias[f]).sum()
        penalty += float(total)
        per_input += float(total) / layer.weight.shape[0]
    np.testing.assert_allclose(loss(network, used, 0.5) - objective, 0.5 * penalty, rtol=1e-4)
    np.testing.assert_allclose(loss_per_input(network, used, 0.5) - objective, 0.5 * per_input, rtol=1e-4)


@pytest.mark.parametrize("seed", range(4))
def test_the_threshold_is_the_one_that_trying_all_of_them_finds(seed):
    rng = np.random.default_rng(seed)
    values = rng.random(int(rng.integers(1, 20))).astype(np.float32)
    for limit in [-0.5, 0.0, *values, 1.5]:
        brute = max((v for v in (-1.0, *values) if v <= limit), default=-1.0)
        assert float(highest(lambda t, limit=limit: t <= limit, jnp.asarray(values))) == np.float32(brute)


@pytest.mark.parametrize("margin", [0.0, 0.04, 0.2, 1.0])
def test_units_are_cut_by_activity_until_the_margin_is_used_up(margin):
    network = random_network(jax.random.key(3))
    inputs = jax.random.normal(KEY, (100, 6))
    # Labels that the network gets right, but for a few; rows after the 80th are filling.
    labels = jnp.argmax(logits(network, inputs), axis=1).at[:4].add(1) % 2
    active = (jnp.zeros(12, bool).at[3].set(True), jnp.zeros(9, bool).at[5].set(True))
    kept = cut(network, active, Data(inputs, labels.astype(jnp.int32), jnp.int32(80)), margin)

    x, y = np.asarray(inputs[:80]), np.asarray(labels[:80])
    weights = [(np.asarray(layer.weight), np.asarray(layer.bias)) for layer in [*network.body, network.head]]

    def accuracy(masks):
        h = x
        for (w, b), mask in zip(weights[:-1], masks, strict=True):
            h = np.maximum(h @ w + b, 0.0) * mask
        return np.mean(np.argmax(h @ weights[-1][0] + weights[-1][1], axis=1) == y)

    masks = [np.ones(12), np.ones(9)]
    goal = accuracy(masks)
    h = x
    for i, (w, b) in enumerate(weights[:-1]):
        h = np.maximum(h @ w + b, 0.0)
        goal -= margin / 2
        activity, old = h.mean(axis=0), np.asarray(active[i])
        choices = [old | (activity > t) for t in sorted([-1.0, *activity[~old]])]
        good = [accuracy([*masks[:i], choice, *masks[i + 1 :]]) >= goal - 1e-6 for choice in choices]
        chosen = [np.array_equal(kept[i], choice) for choice in choices].index(True)
        # The threshold passes and the next one does not; where no fall is followed by a rise, that is the highest.
        assert good[chosen]
        assert chosen == len(choices) - 1 or not good[chosen + 1]
        if good == sorted(good, reverse=True):
            assert chosen == sum(good) - 1
        masks[i] = np.asarray(kept[i])
        h = h * masks[i]


def test_released_units_begin_afresh_and_are_cut_off():
    network = random_network(KEY)
    active = (jnp.arange(12) % 3 == 0, jnp.arange(9) % 2 == 0)
    after = release(jax.random.key(1), network, active)
    np.testing.assert_array_equal(after.body[0].weight[:, active[0]], network.body[0].weight[:, active[0]])
    assert (after.body[0].weight[:, ~active[0]] != network.body[0].weight[:, ~active[0]]).all()
    assert not after.body[1].bias[~active[1]].any()
    body = [Affine(layer.weight * a, layer.bias * a) for layer, a in zip(network.body, active, strict=True)]
    used = network.with_layers([*body, network.head])
    inputs = jax.random.normal(KEY, (20, 6))
    np.testing.assert_allclose(logits(after, inputs), logits(used, inputs), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("size", "expected"), [(50, 10), (7, 2), (2, 1)])
def test_examples_are_held_out_and_not_learnt(size, expected):
    numbers = jnp.arange(60.0)[:, None]
    data, held = set_aside(KEY, Data(numbers, jnp.arange(60, dtype=jnp.int32), jnp.int32(size)), 0.2)
    assert (int(data.size), int(held.size)) == (size - expected, expected)
    rows = [*data.labels[: int(data.size)], *held.labels[: int(held.size)]]
    assert sorted(int(r) for r in rows) == list(range(size))
    np.testing.assert_array_equal(data.inputs[:, 0], data.labels)


def test_a_single_example_is_learnt_and_judged():
    data, held = set_aside(KEY, Data(jnp.ones((3, 1)), jnp.arange(3, dtype=jnp.int32), jnp.int32(1)), 0.2)
    assert (int(data.size), int(held.size)) == (1, 1)
    assert int(data.labels[0]) == int(held.labels[0]) == 0


def test_with_no_free_units_the_head_still_learns(stream):
    start = LEARNER.init(KEY, stream.spec)
    full = CLNPState(start.network, tuple(jnp.ones_like(a) for a in start.active))
    after = observe(full, stream, 1)
    for a, b in zip(jax.tree.leaves(full.network.body), jax.tree.leaves(after.network.body), strict=True):
        np.testing.assert_array_equal(a, b)
    assert not np.array_equal(full.network.head.weight[1], after.network.head.weight[1])
    labels = stream.test(1).labels
    before, later = (np.mean(log_probs(state, stream, 1)[0, np.arange(40), labels]) for state in (full, after))
    assert later > before


def test_nothing_tells_which_output_layer_to_ask_in_the_class_scenario():
    with pytest.raises(VclError, match="scenario"):
        LEARNER.init(KEY, StreamSpec((6,), "float32", 4, (0, 0), 10, "class"))


def test_a_part_held_out_must_be_one():
    with pytest.raises(VclError, match="held-out"):
        CLNP(held_out=1.0)


def test_the_variant_with_neutral_settings_is_the_published_method_and_otherwise_it_is_not(stream, states):
    start = LEARNER.init(KEY, stream.spec)
    learners = [CLNPRecovery(**SETTINGS, strength=0.003, recovery=recovery, per_input=False) for recovery in (0, 5)]
    neutral, recovered = (observe(start, stream, 0, learner) for learner in learners)
    pairs = [
        (np.asarray(a), np.asarray(b), np.asarray(c))
        for a, b, c in zip(*map(jax.tree.leaves, (states[1], neutral, recovered)), strict=True)
    ]
    assert all(np.allclose(a, b, atol=1e-6) for a, b, _ in pairs)
    assert not all(np.allclose(a, c, atol=1e-4) for a, _, c in pairs)


def test_recovery_trains_only_the_units_that_were_kept(stream):
    learner = CLNPRecovery(**SETTINGS, recovery=5)
    network = random_network(KEY)
    free = (jnp.arange(12) >= 2, jnp.arange(9) >= 3)
    kept = (jnp.arange(12) < 8, jnp.arange(9) < 7)
    data = to_device(stream.train(0), stream.spec.capacity)
    after = learner.after_pruning(KEY, network, Masks(free, kept, jnp.zeros(())), data, Fitter())
    for old, new, learns, stays in zip(network.body, after.body, free, kept, strict=True):
        trained = np.asarray(learns & stays)
        np.testing.assert_array_equal(np.asarray(old.weight)[:, ~trained], np.asarray(new.weight)[:, ~trained])
        assert (np.asarray(old.weight)[:, trained] != np.asarray(new.weight)[:, trained]).any()
