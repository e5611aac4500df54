import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import make_stream

from vcl.curvature import diagonal_fisher, kronecker_factors
from vcl.errors import VclError
from vcl.methods.laplace import Laplace, curved_norm, num_filled
from vcl.nets import Affine, from_layers, select_head
from vcl.posteriors.kronecker import Kronecker, merge
from vcl.training import Batch, Data, Fitter, to_device

KEY = jax.random.key(0)
SMALL = {"hidden": (8, 7), "epochs": 3, "batch_size": 16, "learning_rate": 0.01}


def learn(learner, stream):
    """The states after each task, and each task's own curvature at its end."""
    factors = diagonal_fisher if learner.curvature == "diagonal" else kronecker_factors
    states, own = [learner.init(KEY, stream.spec)], []
    for stage in range(3):
        data = to_device(stream.train(stage), stream.spec.capacity)
        task = stream.spec.task(stream.stages[stage])
        states.append(learner.observe(jax.random.fold_in(KEY, stage), states[-1], task, data, Fitter()))
        own.append(factors(KEY, select_head(states[-1].network, task.head), data))
    return states[1:], own


def flat(tree):
    return np.concatenate([np.ravel(a) for a in jax.tree.leaves(tree)])


def draw_pairs(rng, count, inputs, outputs):
    """Positive definite matrices; the bias's input is 1."""
    a = rng.normal(size=(count, inputs, inputs + 2))
    a[:, -1] = 1.0
    g = rng.normal(size=(count, outputs, outputs + 2))
    return Kronecker(jnp.asarray(a @ a.swapaxes(1, 2) / (inputs + 2)), jnp.asarray(g @ g.swapaxes(1, 2)))


def rows(layer):
    """The bias as the last row of the weights."""
    return jnp.concatenate([layer.weight, layer.bias[None]])


@jax.jit
def explicit(change, curvature):
    """Σ_k Σ_layers tr(ΔWᵀ A_k ΔW G_k), as it is written."""
    return sum(
        jnp.trace(rows(layer).T @ a @ rows(layer) @ g)
        for layer, pairs in zip([*change.body, change.head], curvature, strict=True)
        for a, g in zip(pairs.inputs, pairs.outputs, strict=True)
    )


@pytest.mark.usefixtures("float64")
def test_the_norm_is_that_of_the_dense_precision_and_so_is_its_gradient():
    rng = np.random.default_rng(0)
    first, second = (
        Affine(jnp.asarray(rng.normal(size=(i, o))), jnp.asarray(rng.normal(size=o))) for i, o in [(4, 3), (3, 2)]
    )
    change = from_layers([first, second])
    curvature = (draw_pairs(rng, 3, 5, 3), draw_pairs(rng, 3, 4, 2))
    dense = sum(
        np.reshape(rows(layer), -1) @ np.kron(a, g) @ np.reshape(rows(layer), -1)
        for layer, pairs in zip([change.body[0], change.head], curvature, strict=True)
        for a, g in zip(np.asarray(pairs.inputs), np.asarray(pairs.outputs), strict=True)
    )
    value, gradient = jax.jit(jax.value_and_grad(curved_norm))(change, curvature)
    np.testing.assert_allclose(value, dense, rtol=1e-10)
    np.testing.assert_allclose(explicit(change, curvature), dense, rtol=1e-10)
    np.testing.assert_allclose(flat(gradient), flat(jax.jit(jax.grad(explicit))(change, curvature)), rtol=1e-10)


def test_one_head_keeps_the_pairs_of_all_tasks_around_the_newest_weights():
    states, own = learn(Laplace(**SMALL, pairs="separate"), make_stream(shared_head=True))
    body, head = states[-1].curvature[:-1], jax.tree.map(lambda a: a[0], states[-1].curvature[-1])
    for number, task in enumerate(own):
        held = jax.tree.map(lambda a, number=number: a[number], (*body, head))
        np.testing.assert_allclose(flat(held), flat(task), rtol=1e-5, atol=1e-9)
    assert [int(num_filled(state.curvature[0])) for state in states] == [1, 2, 3]
    np.testing.assert_array_equal(flat(states[-1].centre), flat(states[-1].network))


def test_heads_are_held_by_their_own_task_only():
    states, own = learn(Laplace(**SMALL), make_stream())
    head = states[-1].curvature[-1]
    for task, (state, factors) in enumerate(zip(states, own, strict=True)):
        found = jax.tree.map(lambda a, task=task: a[task, 0], head)
        np.testing.assert_allclose(flat(found), flat(factors[-1]), rtol=1e-5, atol=1e-9)
        np.testing.assert_array_equal(states[-1].centre.head.weight[task], state.network.head.weight[task])
    assert not flat(jax.tree.map(lambda a: a[1:], states[0].curvature[-1])).any()


def test_heads_have_one_place_where_tasks_have_pairs_of_their_own():
    states, own = learn(Laplace(**SMALL, pairs="separate"), make_stream())
    for task, factors in enumerate(own):
        found = jax.tree.map(lambda a, task=task: a[task, 0], states[-1].curvature[-1])
        np.testing.assert_allclose(flat(found), flat(factors[-1]), rtol=1e-5, atol=1e-9)


def test_the_diagonal_adds_up():
    states, own = learn(Laplace(**SMALL, curvature="diagonal"), make_stream(shared_head=True))
    total = sum(flat(task) for task in own)
    np.testing.assert_allclose(flat(select_head(states[-1].curvature, 0)), total, rtol=1e-5, atol=1e-9)


@pytest.mark.usefixtures("float64")
def test_a_merged_pair_has_the_trace_of_the_sum_and_is_exact_for_equal_pairs():
    old, new = (jax.tree.map(lambda a: a[0], draw_pairs(np.random.default_rng(n), 1, 5, 3)) for n in (1, 2))
    nothing = jax.tree.map(jnp.zeros_like, old)

    def dense(pair):
        return np.kron(pair.inputs, pair.outputs)

    np.testing.assert_allclose(dense(merge(nothing, new)), dense(new), rtol=1e-12)
    np.testing.assert_allclose(np.trace(dense(merge(old, new))), np.trace(dense(old) + dense(new)), rtol=1e-12)
    larger = Kronecker(3.0 * old.inputs, 2.0 * old.outputs)
    np.testing.assert_allclose(dense(merge(old, larger)), 7.0 * dense(old), rtol=1e-12)
    # Only the share of each pair in both factors counts, not how a pair's size is spread over its own two.
    spread = Kronecker(5.0 * new.inputs, new.outputs / 5.0)
    np.testing.assert_allclose(dense(merge(old, spread)), dense(merge(old, new)), rtol=1e-12)


def test_weights_are_free_to_change_where_no_input_went_unlike_with_a_diagonal():
    """Inputs along (1, 1): the change (1, -1) of two weights together leaves every answer as it was."""
    network = from_layers([Affine(jnp.array([[1.0, -1.0], [0.5, 0.3]]), jnp.zeros(2))])
    along = jnp.linspace(-1.0, 1.0, 10)[:, None] * jnp.ones((1, 2))
    data = Data(along, jnp.zeros(10, jnp.int32), jnp.int32(10))
    change = from_layers([Affine(jnp.array([[1.0, 0.5], [-1.0, -0.5]]), jnp.zeros(2))])
    pairs = jax.tree.map(lambda a: a[None], kronecker_factors(KEY, network, data))
    assert abs(curved_norm(change, pairs)) < 1e-6
    assert curved_norm(change, diagonal_fisher(KEY, network, data)) > 0.1


def test_the_prior_pulls_towards_zero_before_the_first_task():
    stream = make_stream(shared_head=True)
    learner, plain = Laplace(**SMALL, strength=2.0, prior_precision=0.3), Laplace(**SMALL)
    state = learner.init(KEY, stream.spec)
    network, centre = select_head((state.network, state.centre), 0)
    curvature = (*state.curvature[:-1], jax.tree.map(lambda a: a[0], state.curvature[-1]))
    data = to_device(stream.train(0), stream.spec.capacity)
    batch = Batch(data.inputs, data.labels, jnp.arange(data.capacity) < data.size, data.size)
    added = [one.loss(KEY, network, (centre, curvature), batch) for one in (learner, plain)]
    np.testing.assert_allclose(added[0] - added[1], 0.3 * np.sum(flat(network) ** 2), rtol=1e-4)


@pytest.mark.parametrize("wrong", [{"strength": -1.0}, {"prior_precision": -0.1}])
def test_nonsense_is_refused(wrong):
    with pytest.raises(VclError, match=next(iter(wrong)).replace("_", "-")):
        Laplace(**SMALL, **wrong)
