"""Gradient episodic memory: the projection against a reference solver, the memories' gradients, what is kept."""

import dataclasses
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import blobs, make_stream
from scipy.optimize import nnls

from vcl.core import Examples, Task
from vcl.methods.base.episodic import Episode, EpisodicState
from vcl.methods.base.point import negative_log_likelihood
from vcl.methods.finetune import Finetune
from vcl.methods.gem import GEM, project
from vcl.methods.variants.gem_sampled import GEMSampled
from vcl.nets import cross_entropy, logits, select_head
from vcl.training import Batch, Fitter, to_device

KEY = jax.random.key(0)
SETTINGS = {"hidden": (8,), "epochs": 4, "batch_size": 16, "memory": 20}
SMALL = GEM(**SETTINGS)


def rows_of(kind: str, rng: np.random.Generator) -> np.ndarray:
    rows = rng.normal(size=(5, 30))
    if kind == "duplicate":
        rows[3] = rows[1]
    if kind == "nearly parallel":
        rows = rows[:1] + 1e-3 * rows
    if kind == "opposed":
        rows[4] = -rows[0] + 1e-2 * rows[4]
    if kind == "sizes apart":
        rows *= np.array([1e-4, 1.0, 100.0, 1e-2, 1.0])[:, None]
    if kind == "unseen":
        rows[2:] = 0.0
    return rows


def as_tree(rows: np.ndarray) -> dict[str, jax.Array]:
    """The last axis, cut into arrays of several shapes."""
    lead = rows.shape[:-1]
    return {"a": jnp.asarray(rows[..., :12].reshape(*lead, 3, 4)), "b": jnp.asarray(rows[..., 12:])}


def as_row(tree: dict[str, jax.Array]) -> np.ndarray:
    return np.concatenate([np.asarray(tree["a"]).reshape(-1), np.asarray(tree["b"])])


projected = jax.jit(project, static_argnames="margin")


def problems(kind: str) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Memories' gradients, and a gradient that disagrees with at least one."""
    rng = np.random.default_rng(0)
    for _ in range(20):
        rows, g = rows_of(kind, rng), rng.normal(size=30)
        if np.all(rows @ g >= 0):
            g = g - 2.0 * rows[0] * (rows[0] @ g) / (rows[0] @ rows[0])
        yield rows, g


each_kind = pytest.mark.parametrize(
    "kind", ["plain", "duplicate", "nearly parallel", "opposed", "sizes apart", "unseen"]
)


@each_kind
@pytest.mark.parametrize("margin", [0.0, 0.5])
@pytest.mark.usefixtures("float64")
def test_the_projection_is_the_nearest_that_agrees_with_every_memory(kind, margin):
    """Lawson and Hanson's method solves the same problem: min over w ≥ 0 of ‖Mᵀ (w + margin) + g‖."""
    for rows, g in problems(kind):
        found = as_row(projected(as_tree(g), as_tree(rows), margin=margin))
        pushed = g + margin * rows.sum(0)
        expected = pushed + rows.T @ nnls(rows.T, -pushed)[0]
        np.testing.assert_allclose(found, expected, atol=1e-6 * np.linalg.norm(pushed))
        assert np.all(rows @ found >= -1e-6 * np.linalg.norm(rows, axis=1) * np.linalg.norm(pushed))


@each_kind
def test_single_precision_is_enough(kind):
    for rows, g in problems(kind):
        found = as_row(projected(as_tree(g), as_tree(rows), margin=0.0))
        assert np.linalg.norm(found) <= np.linalg.norm(g)
        assert np.all(rows @ found >= -1e-3 * np.linalg.norm(rows, axis=1) * np.linalg.norm(g))


def test_a_gradient_that_agrees_with_every_memory_stays_as_it_is():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(5, 30))
    g = rows.T @ np.linalg.solve(rows @ rows.T, np.array([1.0, 0.1, 2.0, 0.01, 3.0]))
    tree = as_tree(g)
    found = projected(tree, as_tree(rows), margin=0.5)
    assert all(np.array_equal(found[name], tree[name]) for name in tree)


def episode(learner: GEM, state: EpisodicState, task: Task) -> Episode:
    """What `observe` hands to the training of a task."""

    class Asked:
        def __call__(self, key, name, step, params, args, data, **settings):
            self.args = args
            return params

    fit = Asked()
    learner.observe(KEY, state, task, to_device(make_stream().train(task.index), 60), fit)
    return fit.args


def observe(learner, stream, stages):
    state = learner.init(KEY, stream.spec)
    for stage in range(stages):
        data = to_device(stream.train(stage), stream.spec.capacity)
        task = stream.spec.task(stream.stages[stage])
        state = learner.observe(jax.random.fold_in(KEY, stage), state, task, data, Fitter())
    return state


def test_each_memory_has_the_gradient_of_its_own_head_and_none_where_nothing_is_kept(stream):
    state = observe(SMALL, stream, stages=2)
    past = episode(SMALL, state, Task(2, 2))
    assert list(past.others.filled) == [20, 20, 0]
    # A memory that is not full: the rows behind must not count.
    past = dataclasses.replace(
        past, others=dataclasses.replace(past.others, filled=jnp.array([20, 13, 0], jnp.int32))
    )
    found = SMALL.memory_gradients(KEY, state.network, past)
    for task, filled in ((0, 20), (1, 13)):
        x, y = (a[task, :filled] for a in (past.others.inputs, past.others.labels))
        own = jax.jit(jax.grad(lambda net, x=x, y=y: jnp.mean(cross_entropy(logits(net, x), y))))(
            select_head(state.network, task)
        )
        np.testing.assert_allclose(found.body[0].weight[task], own.body[0].weight, atol=1e-6)
        np.testing.assert_allclose(found.head.weight[task, task], own.head.weight, atol=1e-6)
        assert not np.any(np.asarray(found.head.weight[task, 1 - task]))
    assert not any(np.any(np.asarray(a[2])) for a in jax.tree.leaves(found))


def test_a_reference_is_drawn_from_what_is_kept(stream):
    state = observe(SMALL, stream, stages=2)
    past = episode(SMALL, state, Task(2, 2))
    one = dataclasses.replace(past, others=dataclasses.replace(past.others, filled=jnp.array([1, 1, 0], jnp.int32)))
    learners = (SMALL, GEMSampled(**SETTINGS, reference=5))
    whole, drawn = (learner.memory_gradients(KEY, state.network, one) for learner in learners)
    for a, b in zip(jax.tree.leaves(whole), jax.tree.leaves(drawn), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)
    whole, drawn = (learner.memory_gradients(KEY, state.network, past) for learner in learners)
    assert not np.allclose(whole.body[0].weight, drawn.body[0].weight)
    assert not any(np.any(np.asarray(a[2])) for a in jax.tree.leaves(drawn))


def test_the_mean_over_samples_is_the_gradient_on_the_whole_memory(stream):
    state = observe(SMALL, stream, stages=2)
    past = episode(SMALL, state, Task(2, 2))
    sampled = GEMSampled(**SETTINGS, reference=20)
    keys = jax.random.split(KEY, 500)
    many = jax.jit(jax.vmap(lambda key: sampled.memory_gradients(key, state.network, past).head.bias[1]))(keys)
    whole = SMALL.memory_gradients(KEY, state.network, past).head.bias[1]
    error = np.asarray(many.std(axis=0)) / np.sqrt(500)
    assert (np.abs(np.asarray(many.mean(axis=0) - whole)) <= 4 * error + 1e-7).all()


def test_the_variant_with_whole_memories_is_the_published_method_and_otherwise_it_is_not():
    stream = make_stream(shared_head=True)
    learners = (SMALL, GEMSampled(**SETTINGS, reference=0), GEMSampled(**SETTINGS, reference=3))
    published, neutral, sampled = (jax.tree.leaves(observe(learner, stream, stages=3)) for learner in learners)
    assert all(np.allclose(a, b, atol=1e-6) for a, b in zip(published, neutral, strict=True))
    assert not all(np.allclose(a, b, atol=1e-4) for a, b in zip(published, sampled, strict=True))


def test_the_task_that_is_learnt_does_not_constrain_itself(stream):
    state = observe(SMALL, stream, stages=2)
    assert list(episode(SMALL, state, Task(1, 1)).others.filled) == [20, 0, 0]


def test_the_memory_keeps_copies_of_examples_until_it_is_full(stream):
    seen = []

    def fit(key, name, step, params, args, data, **settings):
        seen.append(int(data.size))
        return params

    x, y, _ = stream.train(0)
    state = SMALL.init(KEY, stream.spec)
    for part in (slice(0, 9), slice(9, 40), slice(40, 60)):
        state = SMALL.observe(KEY, state, Task(0, 0), to_device(Examples(x[part], y[part]), 60), fit)
    assert seen == [9, 31, 20]
    assert list(state.memory.filled) == [20, 0, 0]
    kept, given = (
        {(*row, label) for row, label in zip(np.asarray(inputs), np.asarray(labels).tolist(), strict=True)}
        for inputs, labels in ((state.memory.inputs[0], state.memory.labels[0]), (x, y))
    )
    assert len(kept) == 20
    assert kept <= given
    assert SMALL.footprint(state).stored_examples == 20


def test_the_first_task_is_learnt_as_by_fine_tuning(stream):
    adam = dataclasses.replace(SMALL, optimizer="adam", learning_rate=0.001)
    plain = Finetune(hidden=(8,), epochs=4, batch_size=16, learning_rate=0.001)
    found, expected = (observe(learner, stream, stages=1).network for learner in (adam, plain))
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)


def test_a_task_that_contradicts_the_first_does_not_raise_the_loss_on_its_memory():
    """The second task has the first one's inputs and the opposite labels: nothing can be learnt from it."""
    x, y = blobs(0)
    stream = make_stream(shared_head=True)
    losses = {}
    for memory in (60, 0):
        learner = dataclasses.replace(SMALL, memory=memory, margin=0.0, epochs=10)
        state = observe(learner, stream, stages=1)
        batch = Batch(jnp.asarray(x), jnp.asarray(y, jnp.int32), jnp.ones(60, bool), jnp.array(60))
        before = negative_log_likelihood(select_head(state.network, 0), batch)
        state = learner.observe(KEY, state, Task(1, 0), to_device(Examples(x, 1 - y), 60), Fitter())
        losses[memory] = float(negative_log_likelihood(select_head(state.network, 0), batch) - before)
    assert losses[60] < 0.1
    assert losses[0] > 1.0
