import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import make_stream

from vcl.curvature import diagonal_fisher
from vcl.errors import VclError
from vcl.methods.base.penalty import quadratic
from vcl.methods.ewc import EWC
from vcl.methods.variants.ewc_online import EWCOnline
from vcl.nets import select_head
from vcl.training import Batch, Fitter, to_device

KEY = jax.random.key(0)
SMALL = {"hidden": (8, 7), "epochs": 3, "batch_size": 16, "learning_rate": 0.01}


def learn(learner, stream):
    """The states after each task, and the Fisher information of each task at its end."""
    states, fishers = [learner.init(KEY, stream.spec)], []
    for stage in range(3):
        data = to_device(stream.train(stage), stream.spec.capacity)
        task = stream.spec.task(stream.stages[stage])
        states.append(learner.observe(jax.random.fold_in(KEY, stage), states[-1], task, data, Fitter()))
        fishers.append(diagonal_fisher(KEY, select_head(states[-1].network, task.head), data))
    return states[1:], fishers


def flat(tree):
    return np.concatenate([np.ravel(a) for a in jax.tree.leaves(tree)]).astype(np.float64)


def test_one_quadratic_is_the_sum_over_tasks_but_for_a_constant():
    states, fishers = learn(EWC(**SMALL, strength=30.0), make_stream(shared_head=True))
    precision, centre = select_head((states[-1].precision, states[-1].centre), 0)
    ends = [flat(select_head(state.network, 0)) for state in states]
    rng = np.random.default_rng(0)
    one, other = (jax.tree.map(lambda a: rng.normal(size=a.shape).astype(np.float32), centre) for _ in range(2))
    function = jax.jit(jax.value_and_grad(quadratic))

    def explicit(network):
        return sum(np.sum(flat(f) * (flat(network) - end) ** 2) for f, end in zip(fishers, ends, strict=True))

    (value, gradient), (other_value, _) = (function(network, precision, centre) for network in (one, other))
    np.testing.assert_allclose(value - other_value, explicit(one) - explicit(other), rtol=1e-4)
    pulls = sum(2 * flat(f) * (flat(one) - end) for f, end in zip(fishers, ends, strict=True))
    np.testing.assert_allclose(flat(gradient), pulls, rtol=1e-4, atol=1e-6)


def test_the_online_form_decays_and_is_centred_at_the_newest_weights():
    stream = make_stream(shared_head=True)
    states, fishers = learn(EWCOnline(**SMALL, strength=30.0, decay=0.5), stream)
    first, second, third = (flat(fisher) for fisher in fishers)
    found = flat(select_head(states[-1].precision, 0))
    np.testing.assert_allclose(found, 0.25 * first + 0.5 * second + third, rtol=1e-5, atol=1e-9)
    np.testing.assert_array_equal(flat(states[-1].centre), flat(states[-1].network))


def test_the_online_form_is_the_published_one_until_there_are_two_anchors():
    stream = make_stream(shared_head=True)
    published, online = (learn(kind(**SMALL, strength=30.0), stream)[0] for kind in (EWC, EWCOnline))
    first, second, third = (np.abs(flat(a.centre) - flat(b.centre)) for a, b in zip(published, online, strict=True))
    assert first.max() < 1e-6
    np.testing.assert_allclose(flat(published[0].precision), flat(online[0].precision), rtol=1e-6)
    # The second task is learnt under the same penalty; Adam magnifies rounding where a gradient is nearly zero.
    ends = [flat(select_head(states[1].network, 0)) for states in (published, online)]
    assert np.abs(ends[0] - ends[1]).max() < 0.01
    assert second.max() > 0.02
    assert third.max() > 0.02


def test_heads_are_held_by_their_own_task_only():
    states, fishers = learn(EWC(**SMALL, strength=30.0), make_stream())
    for task, (state, fisher) in enumerate(zip(states, fishers, strict=True)):
        np.testing.assert_allclose(flat(states[-1].precision.head.weight[task]), flat(fisher.head.weight), rtol=1e-5)
        np.testing.assert_allclose(
            states[-1].centre.head.weight[task], state.network.head.weight[task], rtol=1e-6, atol=1e-8
        )
    body = sum(flat(fisher.body) for fisher in fishers)
    np.testing.assert_allclose(flat(states[-1].precision.body), body, rtol=1e-5, atol=1e-9)


def test_the_penalty_pulls_towards_the_centre_in_proportion_to_strength():
    stream = make_stream(shared_head=True)
    network, precision, centre = (
        select_head(EWC(**SMALL).init(jax.random.key(seed), stream.spec).network, 0) for seed in (1, 2, 3)
    )
    data = to_device(stream.train(0), stream.spec.capacity)
    batch = Batch(data.inputs, data.labels, jnp.arange(data.capacity) < data.size, data.size)
    with_it, without = (
        jax.jit(jax.grad(EWC(**SMALL, strength=strength).loss, argnums=1))(KEY, network, (precision, centre), batch)
        for strength in (7.0, 0.0)
    )
    pull = 7.0 * flat(precision) * (flat(network) - flat(centre))
    np.testing.assert_allclose(flat(with_it) - flat(without), pull, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("wrong", [{"decay": 1.5}, {"decay": -0.1}, {"strength": -1.0}])
def test_nonsense_is_refused(wrong):
    with pytest.raises(VclError, match=next(iter(wrong))):
        EWCOnline(**SMALL, **wrong)
