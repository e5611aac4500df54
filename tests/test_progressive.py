"""Progressive networks: what a column computes, what it learns, and what stays as it is."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import make_stream

from vcl.core import StreamSpec
from vcl.errors import VclError
from vcl.methods.finetune import Finetune
from vcl.methods.progressive import Column, Progressive, ProgressiveParams, activations, all_activations, select
from vcl.training import Batch, Fitter, to_device

KEY = jax.random.key(0)
LEARNER = Progressive(hidden=(5, 4), epochs=3, batch_size=16, learning_rate=0.003, schedule="cosine")
TASKS = 3
PREDICT = jax.jit(LEARNER.predict)
ACTIVATIONS = jax.jit(activations)


@pytest.fixture(scope="module")
def stream():
    return make_stream(shared_head=True)


@pytest.fixture(scope="module")
def states(stream):
    found = [LEARNER.init(KEY, stream.spec)]
    for stage in range(TASKS):
        data = to_device(stream.train(stage), stream.spec.capacity)
        key = jax.random.fold_in(KEY, stage)
        found.append(LEARNER.observe(key, found[-1], stream.spec.task(stage), data, Fitter()))
    return found


def noise(columns: Column) -> Column:
    """Other weights of the same shapes; laterals from columns that are not earlier stay zero."""
    leaves, structure = jax.tree.flatten(columns)
    keys = jax.random.split(KEY, len(leaves))
    drawn = jax.tree.unflatten(structure, [jax.random.normal(k, a.shape) for k, a in zip(keys, leaves, strict=True)])
    earlier = jnp.arange(TASKS - 1) < jnp.arange(TASKS)[:, None]
    return Column(drawn.network, tuple(u * earlier[:, :, None, None] for u in drawn.laterals))


def by_hand(columns: Column, task: int, inputs: np.ndarray) -> tuple[list[list[np.ndarray]], np.ndarray]:
    """The hidden layers of columns 0 to `task`, and the logits of the last, in plain loops."""
    layers = [*columns.network.body, columns.network.head]
    weights = [(np.asarray(layer.weight), np.asarray(layer.bias)) for layer in layers]
    laterals = [np.asarray(u) for u in columns.laterals]
    hidden: list[list[np.ndarray]] = []
    for t in range(task + 1):
        h, seen = inputs, []
        for i, (w, b) in enumerate(weights):
            a = h @ w[t] + b[t]
            for j in range(t):
                if i > 0:
                    a = a + hidden[j][i - 1] @ laterals[i - 1][t, j]
            h = np.maximum(a, 0.0) if i < len(weights) - 1 else a
            seen.append(h)
        hidden.append(seen[:-1])
    return hidden, h


def log_probs(state, stream, task):
    params = LEARNER.readout(KEY, state, stream.spec.task(task), Fitter())
    return PREDICT(KEY, params, jnp.asarray(stream.test(task).inputs))


def test_every_column_computes_what_plain_loops_do(stream, states):
    columns = noise(states[0].columns)
    inputs = stream.test(0).inputs
    for task in range(TASKS):
        hidden, outputs = by_hand(columns, task, inputs)
        params = ProgressiveParams(columns, jnp.int32(task))
        found = PREDICT(KEY, params, jnp.asarray(inputs))[0]
        np.testing.assert_allclose(found, jax.nn.log_softmax(outputs), rtol=1e-3, atol=1e-3)
        for layer, old in enumerate(ACTIVATIONS(columns, jnp.int32(task), jnp.asarray(inputs))):
            for j in range(TASKS - 1):
                expected = hidden[j][layer] if j < task else np.zeros_like(old[:, j])
                np.testing.assert_allclose(old[:, j], expected, rtol=1e-3, atol=1e-3)


def test_activations_for_a_whole_data_set_are_those_of_its_rows(states):
    columns = noise(states[0].columns)
    # More rows than are computed at once, and not a multiple of them; bytes are read as pixels.
    inputs = np.random.default_rng(0).integers(0, 256, (1003, 6), np.uint8)
    for whole, part in zip(
        all_activations(columns, jnp.int32(2), jnp.asarray(inputs)),
        ACTIVATIONS(columns, jnp.int32(2), jnp.asarray(inputs / 255.0, jnp.float32)),
        strict=True,
    ):
        np.testing.assert_allclose(whole, part, rtol=1e-4, atol=1e-5)


def test_later_tasks_change_no_bit_of_what_earlier_ones_learnt_and_answer(stream, states):
    for task in range(TASKS - 1):
        columns = [select(state.columns, task) for state in states[task + 1 :]]
        answers = [log_probs(state, stream, task) for state in states[task + 1 :]]
        for column, answer in zip(columns[1:], answers[1:], strict=True):
            for a, b in zip(jax.tree.leaves(columns[0]), jax.tree.leaves(column), strict=True):
                np.testing.assert_array_equal(a, b)
            np.testing.assert_array_equal(answers[0], answer)
    assert not np.array_equal(log_probs(states[0], stream, 0), log_probs(states[1], stream, 0))


def test_laterals_come_from_earlier_columns_and_only_from_them(states):
    for lateral in states[-1].columns.laterals:
        for new in range(TASKS):
            for old in range(TASKS - 1):
                assert bool(jnp.any(lateral[new, old] != 0)) == (old < new)


def test_the_loss_has_a_gradient_at_every_lateral_from_an_earlier_column(stream, states):
    columns = states[-1].columns
    inputs = jnp.asarray(stream.train(2).inputs)
    rows = jnp.arange(len(inputs))
    batch = Batch(rows[:, None], jnp.asarray(stream.train(2).labels, jnp.int32), rows >= 0, jnp.int32(len(rows)))
    old = all_activations(columns, jnp.int32(2), inputs)
    gradient = jax.jit(jax.grad(LEARNER.loss, argnums=1))(KEY, select(columns, 2), (inputs, old), batch)
    for lateral in gradient.laterals:
        assert all(float(jnp.abs(one).max()) > 1e-5 for one in lateral)


def test_the_first_task_is_learnt_as_fine_tuning_would(stream, states):
    plain = Finetune(hidden=(5, 4), epochs=3, batch_size=16, learning_rate=0.003, schedule="cosine")
    data = to_device(stream.train(0), stream.spec.capacity)
    task = stream.spec.task(0)
    network = plain.observe(jax.random.fold_in(KEY, 0), plain.init(KEY, stream.spec), task, data, Fitter()).network
    first = select(states[1].columns, 0).network
    np.testing.assert_allclose(first.head.weight, network.head.weight[0], rtol=1e-4, atol=1e-5)
    for a, b in zip(jax.tree.leaves(first.body), jax.tree.leaves(network.body), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_the_footprint_counts_the_columns_in_use(states):
    own = 6 * 5 + 5 + 5 * 4 + 4 + 4 * 2 + 2
    lateral = 5 * 4 + 4 * 2
    assert [LEARNER.footprint(state).parameters for state in states] == [
        0,
        own,
        2 * own + lateral,
        3 * own + 3 * lateral,
    ]


def test_nothing_tells_which_column_to_ask_in_the_class_scenario():
    with pytest.raises(VclError, match="scenario"):
        LEARNER.init(KEY, StreamSpec((6,), "float32", 4, (0, 0), 10, "class"))


def test_a_column_that_later_ones_read_is_not_trained_again(stream, states):
    data = to_device(stream.train(0), stream.spec.capacity)
    with pytest.raises(VclError, match="later tasks were learnt since"):
        LEARNER.observe(KEY, states[2], stream.spec.task(0), data, Fitter())
