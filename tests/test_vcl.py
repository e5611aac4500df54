"""Variational continual learning itself: the recursion, the objective, starts, heads and coresets."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import make_stream

from vcl import memory
from vcl.core import Examples, StreamSpec, Task
from vcl.errors import VclError
from vcl.methods import make
from vcl.methods.vcl import VCL, VCLState
from vcl.nets import cross_entropy, pixels, select_head
from vcl.posteriors.mean_field import Gaussian, isotropic, kl, logits_local
from vcl.training import Adam, Batch, Data, Fitter, compiled_epochs, masked_mean, to_device

SMALL = VCL(hidden=(8,), epochs=4, batch_size=16, test_samples=5)
KEY = jax.random.key(0)


def observe(learner, stream, stages=None, fit=None):
    """The states after each of the first stages."""
    state = learner.init(KEY, stream.spec)
    states = [state]
    for stage in range(stages or len(stream.stages)):
        data = to_device(stream.train(stage), stream.spec.capacity)
        task = stream.spec.task(stream.stages[stage])
        state = learner.observe(jax.random.fold_in(KEY, stage), state, task, data, fit or Fitter())
        states.append(state)
    return states


def equal(a, b) -> bool:
    return all(np.array_equal(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


# Inputs that are zero


def with_zeros(used, inputs):
    rng = np.random.default_rng(0)
    x = np.zeros((30, inputs), np.float32)
    x[:, :used] = rng.random((30, used))
    return StreamSpec((inputs,), "float32", 2, (0, 1), 32), to_device(Examples(x, rng.integers(0, 2, 30)), 32)


@pytest.mark.parametrize("method", ["vcl", "gvcl"])
@pytest.mark.parametrize("inputs", [40, 32, 24])
def test_weights_of_inputs_that_are_zero_for_a_whole_task_stay_at_the_prior(method, inputs):
    spec, data = with_zeros(20, inputs)
    settings = {"hidden": (5,), "epochs": 3, "batch_size": 16, "test_samples": 2, "coreset": 3, "start": "fresh"}
    learner = make(method, {**settings, "zero_inputs": "skip"})
    state = learner.observe(KEY, learner.init(KEY, spec), spec.task(0), data, Fitter())
    prior = state.posterior
    state = learner.observe(KEY, state, spec.task(1), data, Fitter())
    refined = learner.readout(KEY, state, spec.task(1), Fitter())
    for q in (state.posterior, getattr(refined, "posterior", refined)):
        for now, was in ((q.mean, prior.mean), (q.log_var, prior.log_var)):
            assert np.array_equal(now.body[0].weight[20:], was.body[0].weight[20:])
            assert (now.body[0].weight[:20] != was.body[0].weight[:20]).all()
    assert np.isfinite(learner.predict(KEY, refined, data.inputs)).all()


def test_where_no_input_is_zero_none_is_skipped():
    spec, data = with_zeros(40, 40)
    states = [
        learner.observe(KEY, learner.init(KEY, spec), spec.task(0), data, Fitter())
        for learner in (dataclasses.replace(SMALL, zero_inputs=way) for way in ("skip", "train"))
    ]
    assert equal(*states)


# The recursion


@pytest.mark.usefixtures("float64")
def test_the_recursion_gives_the_batch_posterior_of_conjugate_linear_regression():
    """With orthogonal features mean field is exact, so folding over tasks must equal seeing all the data at once."""
    rng = np.random.default_rng(0)
    features = np.linalg.qr(rng.normal(size=(60, 4)))[0].reshape(3, 20, 4)
    # Each task's own features must be orthogonal too.
    features = np.stack([np.linalg.qr(f)[0] * scale for f, scale in zip(features, (2.0, 3.0, 1.5), strict=True)])
    noise = 0.5
    targets = np.stack([f @ [1.0, -2.0, 0.5, 3.0] + noise * rng.normal(size=20) for f in features])

    def nelbo(key, q, args, batch: Batch):
        # E_q[-log N(y; xθ, noise²)] in closed form: no Monte Carlo, so that only the recursion is tested.
        prior, values = args
        error = (values[batch.labels] - batch.inputs @ q.mean) ** 2 + batch.inputs**2 @ jnp.exp(q.log_var)
        return masked_mean(0.5 * error / noise**2, batch.mask) + kl(q, prior) / batch.size

    q = isotropic(jnp.zeros(4), 0.0, 1.0)
    precision, weighted = np.eye(4), np.zeros(4)
    for task, (x, y) in enumerate(zip(features, targets, strict=True)):
        data = to_device(Examples(x, np.arange(20)), 20)
        step = Adam(nelbo, 0.05, "cosine")
        q = Fitter()(KEY, f"{task}", step, q, (q, jnp.asarray(y)), data, epochs=3000, batch_size=20)
        precision, weighted = precision + x.T @ x / noise**2, weighted + x.T @ y / noise**2
        np.testing.assert_allclose(q.mean, np.linalg.solve(precision, weighted), atol=1e-4)
        np.testing.assert_allclose(np.exp(q.log_var), np.diag(np.linalg.inv(precision)), rtol=1e-3)


def test_the_objective_is_equation_one_divided_by_the_number_of_examples():
    stream = make_stream()
    prior = select_head(SMALL.init(KEY, stream.spec).posterior, 0)
    q = SMALL.fresh(KEY, prior.mean)
    x, y, _ = stream.train(0)
    batch = Batch(jnp.asarray(x[:9]), jnp.asarray(y[:9], jnp.int32), jnp.arange(9) < 6, jnp.array(60))
    draws = logits_local(KEY, q, pixels(batch.inputs), 1, SMALL.family)[0]
    likelihood = jax.nn.log_softmax(draws)[np.arange(9), y[:9]]
    expected = -likelihood[:6].mean() + kl(q, prior) / 60
    np.testing.assert_allclose(SMALL.nelbo(KEY, q, prior, batch), expected, rtol=1e-5)


def test_cross_entropy_is_minus_the_log_probability_of_the_label():
    outputs = jnp.log(jnp.array([[[0.2, 0.8], [0.5, 0.5]], [[0.9, 0.1], [0.25, 0.75]]]))
    found = cross_entropy(outputs, jnp.array([1, 0], jnp.int32))
    np.testing.assert_allclose(found, -np.log([[0.8, 0.5], [0.1, 0.25]]), rtol=1e-5)


def test_the_prior_of_a_task_is_the_posterior_before_it():
    """Given one example, there is nothing to learn: the posterior stays near the prior, wherever it started."""
    stream = make_stream(shared_head=True)
    learner = dataclasses.replace(SMALL, epochs=60, learning_rate=0.05)
    before = observe(learner, stream, stages=1)[-1]
    x, y, _ = stream.train(0)
    one = to_device(Examples(x[:1], y[:1]), 60)
    longer = dataclasses.replace(learner, epochs=1500)
    after = longer.observe(KEY, before, Task(1, 0), one, Fitter())
    nowhere = longer.init(KEY, stream.spec)
    assert kl(after.posterior, before.posterior) < 0.05 * kl(before.posterior, nowhere.posterior)


# Conformance


@pytest.mark.parametrize("settings", [{}, {"coreset": 5}, {"start": "previous"}, {"estimator": "weights"}])
def test_the_state_keeps_its_structure_shapes_and_types(stream, settings):
    learner = dataclasses.replace(SMALL, **settings)
    first, *others = observe(learner, stream)
    for state in others:
        assert jax.tree.structure(state) == jax.tree.structure(first)
        for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(state), strict=True):
            assert (a.shape, a.dtype) == (b.shape, b.dtype)


def test_later_tasks_are_not_compiled_again(stream):
    learner = dataclasses.replace(SMALL, hidden=(9,))
    observe(learner, stream, stages=1)
    compiled = compiled_epochs()._cache_size()
    observe(learner, stream)
    assert compiled_epochs()._cache_size() == compiled


def test_the_same_key_gives_the_same_bits_and_another_does_not(stream):
    first, again = (observe(SMALL, stream)[-1] for _ in range(2))
    assert equal(first, again)
    data = to_device(stream.train(0), stream.spec.capacity)
    start = SMALL.init(KEY, stream.spec)
    a, b = (SMALL.observe(jax.random.key(k), start, Task(0, 0), data, Fitter()) for k in (1, 2))
    assert not equal(a.posterior, b.posterior)


def test_predictions_are_normalised_for_every_sample(stream):
    state = observe(SMALL, stream, stages=1)[-1]
    draws = SMALL.predict(KEY, SMALL.readout(KEY, state, Task(0, 0), Fitter()), jnp.asarray(stream.test(0).inputs))
    assert draws.shape == (5, 40, 2)
    np.testing.assert_allclose(jnp.exp(draws).sum(-1), 1.0, rtol=1e-5)
    assert not np.allclose(draws[0], draws[1])


def test_a_task_changes_the_body_and_its_own_head_only(stream):
    before, after = observe(SMALL, stream, stages=2)[1:]
    for part in ("mean", "log_var"):
        old, new = getattr(before.posterior, part), getattr(after.posterior, part)
        np.testing.assert_array_equal(old.head.weight[0], new.head.weight[0])
        np.testing.assert_array_equal(old.head.weight[2], new.head.weight[2])
        assert not np.array_equal(old.head.weight[1], new.head.weight[1])
        assert not np.array_equal(old.body[0].weight, new.body[0].weight)


# Where a task starts


class Starts:
    """A fit that learns nothing: it remembers where it was asked to start."""

    def __init__(self):
        self.seen = {}

    def __call__(self, key, name, step, params, args, data, **settings):
        self.seen[name] = params
        return params


def test_a_fresh_start_has_small_random_means_and_small_variances(stream):
    learner = dataclasses.replace(SMALL, hidden=(300,), init_std=0.1)
    state = observe(dataclasses.replace(learner, epochs=1), stream, stages=1)[-1]
    fit = Starts()
    data = to_device(stream.train(1), stream.spec.capacity)
    learner.observe(KEY, state, Task(1, 1), data, fit)
    start = fit.seen["train"]
    assert abs(start.mean.body[0].weight.std() - 0.1) < 0.01
    assert np.all(start.log_var.body[0].weight == -6.0)


def test_previous_starts_at_maximum_likelihood_then_at_the_previous_posterior(stream):
    learner = dataclasses.replace(SMALL, start="previous")
    fit = Starts()
    data = to_device(stream.train(0), stream.spec.capacity)
    state = learner.observe(KEY, learner.init(KEY, stream.spec), Task(0, 0), data, fit)
    assert equal(fit.seen["train"].mean, fit.seen["maximum-likelihood"])
    fit = Starts()
    learner.observe(KEY, state, Task(1, 1), data, fit)
    assert set(fit.seen) == {"train"}
    assert equal(fit.seen["train"].mean.body, state.posterior.mean.body)
    fit = Starts()
    learner.observe(KEY, state, Task(0, 0), data, fit)
    assert equal(fit.seen["train"], select_head(state.posterior, 0))


def test_slow_variances_stay_near_their_start_while_the_means_learn(stream):
    slow, usual = (observe(dataclasses.replace(SMALL, variance_rate=r), stream, stages=1)[-1] for r in (0.01, 1.0))
    moved = [abs(s.posterior.log_var.body[0].weight + 6.0).max() for s in (slow, usual)]
    assert 0 < moved[0] < 0.05 * moved[1]
    assert abs(slow.posterior.mean.body[0].weight).max() > 0.05


# Coresets


def test_the_coreset_is_taken_out_of_the_data(stream):
    learner = dataclasses.replace(SMALL, coreset=7)

    class Sizes(Starts):
        def __call__(self, key, name, step, params, args, data, **settings):
            self.seen[name] = data
            return params

    fit = Sizes()
    examples = stream.train(1)
    state = learner.init(KEY, stream.spec)
    state = learner.observe(KEY, state, Task(1, 1), to_device(examples, 60), fit)
    data = fit.seen["train"]
    assert int(data.size) == 47 - 7
    kept, aside = np.asarray(data.inputs[:40]), np.asarray(state.coreset.inputs[1])
    together = np.concatenate([kept, aside])
    assert {tuple(r) for r in together} == {tuple(r) for r in examples.inputs}
    assert list(state.coreset.filled) == [0, 7, 0]


def test_the_propagated_posterior_never_sees_the_coreset(stream):
    learner = dataclasses.replace(SMALL, coreset=7, coreset_epochs=30)
    state = observe(learner, stream, stages=2)[-1]
    copy = jax.tree.map(np.array, state)
    refined = learner.readout(KEY, state, Task(0, 0), Fitter())
    assert equal(state, copy)
    assert not equal(refined, select_head(state.posterior, 0))
    changed = dataclasses.replace(state, coreset=jax.tree.map(lambda a: a * 0, state.coreset))
    data = to_device(stream.train(2), stream.spec.capacity)
    a, b = (learner.observe(KEY, s, Task(2, 2), data, Fitter()) for s in (state, changed))
    assert equal(a.posterior, b.posterior)


def test_training_on_the_coreset_improves_its_likelihood(stream):
    learner = dataclasses.replace(SMALL, coreset=20, coreset_epochs=200, learning_rate=0.05)
    state = learner.init(KEY, stream.spec)
    data = to_device(stream.train(0), stream.spec.capacity)
    coreset, _ = memory.set_aside(KEY, state.coreset, 0, data, "random")
    ignorant = VCLState(state.posterior, state.trained, coreset)
    x, y = coreset.inputs[0], np.asarray(coreset.labels[0])

    def likelihood(q: Gaussian) -> float:
        return float(learner.predict(KEY, q, x)[:, np.arange(20), y].mean())

    before = likelihood(select_head(state.posterior, 0))
    assert likelihood(learner.readout(KEY, ignorant, Task(0, 0), Fitter())) > before + 0.5


def test_coresets_are_per_task_with_several_heads_and_merged_with_one():
    learner = dataclasses.replace(SMALL, coreset=4)
    for shared, expected in ((False, 4), (True, 8)):
        stream = make_stream(shared_head=shared)
        state = observe(learner, stream, stages=2)[-1]
        data = memory.for_readout(state.coreset, stream.spec.num_heads, 1)
        assert int(data.size) == expected
        rows = {tuple(r) for r in np.asarray(data.inputs[:expected])}
        own = {tuple(r) for r in np.asarray(state.coreset.inputs[1])}
        assert own <= rows


def test_tasks_that_share_a_head_share_one_refinement():
    learner = dataclasses.replace(SMALL, coreset=4)
    stream = make_stream(shared_head=True)
    state = observe(learner, stream, stages=2)[-1]
    fit = Fitter()
    first, second = (learner.readout(KEY, state, Task(t, 0), fit) for t in (0, 1))
    assert first is second


def test_a_coreset_fills_up_over_several_batches_of_one_task(stream):
    learner = dataclasses.replace(SMALL, coreset=7)
    x, y, _ = stream.train(0)
    state = learner.init(KEY, stream.spec)
    for part in (slice(0, 4), slice(4, 30), slice(30, 60)):
        state = learner.observe(KEY, state, Task(0, 0), to_device(Examples(x[part], y[part]), 60), Starts())
    assert list(state.coreset.filled) == [7, 0, 0]
    assert len({tuple(r) for r in np.asarray(state.coreset.inputs[0])}) == 7


def test_random_coresets_are_distinct_real_rows():
    data = Data(jnp.arange(20.0)[:, None], jnp.zeros(20, jnp.int32), jnp.array(12))
    rows = np.asarray(memory.random(KEY, data, 12))
    assert sorted(rows) == list(range(12))


def test_k_center_equals_brute_force():
    points = np.random.default_rng(0).normal(size=(30, 3)).astype(np.float32)
    data = Data(jnp.asarray(np.pad(points, ((0, 9), (0, 0)))), jnp.zeros(39, jnp.int32), jnp.array(30))
    rows = [int(r) for r in memory.k_center(KEY, data, 8)]
    expected = rows[:1]
    while len(expected) < 8:
        distance = ((points[:, None] - points[None, expected]) ** 2).sum(-1).min(1)
        expected.append(int(distance.argmax()))
    assert rows == expected


def test_k_center_takes_no_row_twice():
    points = np.repeat(np.eye(3, dtype=np.float32), 10, axis=0)
    data = Data(jnp.asarray(points), jnp.repeat(jnp.arange(3), 10), jnp.array(30))
    rows = memory.k_center(KEY, data, 12)
    assert len(set(rows.tolist())) == 12
    left = memory.remove(data, rows)
    assert sorted([*left.labels[: int(left.size)].tolist(), *data.labels[rows].tolist()]) == sorted(
        data.labels.tolist()
    )


# Settings


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"epochs": -3}, "--epochs must be above 0 and finite, but it is -3"),
        ({"learning_rate": float("nan")}, "--learning-rate must be above 0"),
        ({"hidden": (10, 0)}, "--hidden needs"),
        ({"coreset": -1}, "--coreset must not be negative"),
        # What would have no effect.
        ({"estimator": "weights", "noise_per": "batch"}, "--estimator weights samples weights"),
        ({"estimator": "weights", "noise_per": "class"}, "--estimator weights samples weights"),
        ({"estimator": "weights", "antithetic": True}, "--estimator weights samples weights"),
        ({"zero_inputs": "skip", "network": "conv"}, "a convolution uses the same weights for all inputs"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(settings, message):
    with pytest.raises(VclError, match=message):
        dataclasses.replace(SMALL, **settings)


def test_no_recipe_asks_for_what_is_refused():
    for recipe in VCL.recipes.values():
        for settings in recipe.values():
            make("vcl", settings)


def test_a_coreset_larger_than_the_data_is_refused(stream):
    with pytest.raises(VclError, match="at most 60"):
        dataclasses.replace(SMALL, coreset=60).init(KEY, stream.spec)


def test_the_defaults_are_those_of_vcl_run_on_split_benchmarks():
    assert VCL() == make("vcl", VCL.recipes["fast"]["split"])


def test_a_further_batch_starts_at_the_posterior_with_settings_of_its_own():
    """One epoch at no rate to speak of leaves a further batch where the first one ended."""
    stream = make_stream(sizes=(60,))
    learner = VCL(hidden=(4,), epochs=5, batch_size=16, further_epochs=1, learning_rate=1e-12)
    data = to_device(stream.train(0), stream.spec.capacity)
    first = learner.observe(KEY, learner.init(KEY, stream.spec), Task(0, 0), data, Fitter())
    fit = Fitter()
    further = learner.observe(jax.random.key(9), first, Task(0, 0, batch=1), data, fit)
    assert fit.steps == 4
    for a, b in zip(jax.tree.leaves(further.posterior), jax.tree.leaves(first.posterior), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)
    anew = learner.observe(jax.random.key(9), first, Task(0, 0), data, Fitter())
    assert not np.allclose(anew.posterior.mean.body[0].weight, first.posterior.mean.body[0].weight, atol=1e-3)


def test_the_first_task_may_start_wider_than_the_later_ones():
    stream = make_stream()
    learner = VCL(hidden=(50,), epochs=1, init_std=0.1, first_init_std=2.0, learning_rate=1e-12)
    state = learner.init(KEY, stream.spec)
    spreads = []
    for stage in range(2):
        data = to_device(stream.train(stage), stream.spec.capacity)
        state = learner.observe(KEY, state, stream.task(stage), data, Fitter())
        spreads.append(float(state.posterior.mean.body[0].weight.std()))
    assert spreads == [pytest.approx(2.0, rel=0.2), pytest.approx(0.1, rel=0.2)]


@pytest.mark.parametrize("method", ["vcl", "gvcl", "joint-vcl", "separate-vcl"])
def test_the_temperature_at_test_time_scales_the_variances_that_predict(method, stream):
    warm, cold = (make(method, {"hidden": (6,), "test_temperature": each}) for each in (1.0, 0.25))
    state = warm.init(KEY, stream.spec)
    q, tempered = (each.readout(KEY, state, stream.task(0), Fitter()) for each in (warm, cold))
    q, tempered = (getattr(each, "posterior", each) for each in (q, tempered))
    assert equal(q.mean, tempered.mean)
    for before, after in zip(jax.tree.leaves(q.log_var), jax.tree.leaves(tempered.log_var), strict=True):
        np.testing.assert_allclose(np.exp(after), 0.25 * np.exp(before), rtol=1e-5)
