"""Matrix-normal posteriors and the VCL that uses them."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import make_stream
from scipy.stats import multivariate_normal

from vcl import runs
from vcl.analysis import analyse, prune
from vcl.benchmarks.streams import from_arrays
from vcl.core import StreamSpec, Task
from vcl.errors import VclError
from vcl.methods.base.eigenbasis import (
    bases_of,
    pull,
    rotate,
    rotate_back,
    rotated_data,
    rotated_logits,
    with_leverage,
)
from vcl.methods.kronecker_vcl import Belief, Held, KroneckerVCL, believed, partly_forgotten, shares
from vcl.methods.laplace import Laplace, select_curvature
from vcl.nets import Affine, ConvNet, cross_entropy, from_layers, logits, random, select_head
from vcl.posteriors.kronecker import (
    Kronecker,
    KroneckerFactored,
    LayerMoments,
    MatrixNormal,
    affine_of,
    logits_kronecker,
    merge,
    nearest,
    rows_of,
    spread_of,
)
from vcl.training import Batch, Data, Fitter, to_device

KEY = jax.random.key(0)
FAMILY = KroneckerFactored()
SMALL = KroneckerVCL(hidden=(8,), epochs=6, batch_size=16, learning_rate=0.02, temperature=0.2)


def draw_pair(rng, inputs, outputs, scale=1.0):
    a, g = rng.normal(size=(inputs, inputs + 2)), rng.normal(size=(outputs, outputs + 2))
    return Kronecker(jnp.asarray(scale * a @ a.T), jnp.asarray(g @ g.T))


def draw_layer(rng, inputs, outputs):
    return affine_of(jnp.asarray(rng.normal(size=(inputs, outputs))))


def dense(pair):
    """The precision over the rows of a layer, one after the other."""
    return np.kron(pair.inputs, pair.outputs)


def covariance(spread):
    return np.kron(spread.rows, spread.root @ spread.root.T)


def observe(learner, stream, stages=3):
    state = learner.init(KEY, stream.spec)
    states = [state]
    for stage in range(stages):
        data = to_device(stream.train(stage), stream.spec.capacity)
        states.append(
            learner.observe(jax.random.fold_in(KEY, stage), states[-1], stream.task(stage), data, Fitter())
        )
    return states


@pytest.mark.usefixtures("float64")
def test_a_merged_pair_is_exact_where_the_pairs_share_a_factor_and_keeps_the_trace_elsewhere():
    rng = np.random.default_rng(0)
    a, b = draw_pair(rng, 4, 3), draw_pair(rng, 4, 3, scale=50.0)
    shared_outputs = Kronecker(b.inputs, 7.0 * a.outputs)
    shared_inputs = Kronecker(0.1 * a.inputs, b.outputs)
    for other in (shared_outputs, shared_inputs):
        np.testing.assert_allclose(dense(nearest(a, other)), dense(a) + dense(other), rtol=1e-10)
    # The product of the sums is not: it weighs old and new by the square roots of their sizes.
    assert np.abs(dense(merge(a, shared_outputs)) - dense(a) - dense(shared_outputs)).max() > 1.0
    for merged in (nearest(a, b), merge(a, b)):
        np.testing.assert_allclose(np.trace(dense(merged)), np.trace(dense(a)) + np.trace(dense(b)), rtol=1e-10)
    nothing = jax.tree.map(jnp.zeros_like, a)
    np.testing.assert_allclose(dense(nearest(nothing, b)), dense(b), rtol=1e-10)
    np.testing.assert_allclose(dense(nearest(b, nothing)), dense(b), rtol=1e-10)
    assert not np.any(dense(nearest(nothing, nothing)))


@pytest.mark.usefixtures("float64")
def test_no_other_pair_of_the_same_span_is_nearer_to_the_sum():
    rng = np.random.default_rng(1)
    a, b = draw_pair(rng, 4, 3), draw_pair(rng, 4, 3)
    goal = dense(a) + dense(b)

    def distance(pair):
        product = dense(pair)
        scale = np.sum(product * goal) / np.sum(product**2)
        return np.sum((scale * product - goal) ** 2)

    best = distance(nearest(a, b))
    assert best < distance(merge(a, b))
    for x, y in rng.uniform(0, 1, (50, 2)):
        other = Kronecker(x * a.inputs + (1 - x) * b.inputs, y * a.outputs + (1 - y) * b.outputs)
        assert best <= distance(other) * (1 + 1e-12)


@pytest.mark.usefixtures("float64")
def test_the_recursion_is_exact_for_conjugate_regression():
    """Y = X W + noise with precision G: one batch after the other gives the mean and the curvature of all at once.

    The covariance is exact up to its damping: a product of factors is not that product plus δI, but more precise.
    """
    rng = np.random.default_rng(2)
    noise = draw_pair(rng, 1, 2).outputs
    inputs = [np.c_[rng.normal(size=(n, 3)), np.ones(n)] for n in (5, 20, 9)]
    targets = [rng.normal(size=(len(x), 2)) for x in inputs]
    precision = 0.7
    like = from_layers([affine_of(jnp.zeros((4, 2)))])
    pair, mean = Kronecker(jnp.zeros((4, 4)), jnp.zeros((2, 2))), jnp.zeros((4, 2))
    for x, y in zip(inputs, targets, strict=True):
        bases = bases_of([pair])
        centre = rotate(bases, like.with_layers([affine_of(mean)]))

        def objective(rotated, x=x, y=y, bases=bases, centre=centre):
            errors = y - x @ bases[0].back(rotated[0])
            return 0.5 * jnp.trace(errors.T @ errors @ noise) + pull(bases, rotated, centre, 1.0, precision)

        # A quadratic: one Newton step from anywhere is its minimum. Only the first prior's precision is isotropic.
        flat, unflatten = jax.flatten_util.ravel_pytree(centre)
        gradient = jax.jit(jax.grad(lambda v, f=objective, u=unflatten: f(u(v))))(flat)
        hessian = jax.jit(jax.hessian(lambda v, f=objective, u=unflatten: f(u(v))))(flat)
        found = unflatten(flat - jnp.linalg.solve(hessian, gradient))
        mean = rows_of(rotate_back(bases, found, like).head)
        pair = nearest(pair, Kronecker(jnp.asarray(x.T @ x), noise))
    x, y = np.concatenate(inputs), np.concatenate(targets)
    exact = np.kron(x.T @ x, noise) + precision * np.eye(8)
    np.testing.assert_allclose(dense(pair) + precision * np.eye(8), exact, rtol=1e-9)
    np.testing.assert_allclose(np.ravel(mean), np.linalg.solve(exact, np.ravel(x.T @ y @ noise)), rtol=1e-9)
    damped = np.linalg.inv(covariance(spread_of(pair, precision, 1.0)))
    assert np.linalg.eigvalsh(damped - exact).min() > -1e-6
    assert np.trace(damped) < 1.5 * np.trace(exact)
    undamped = np.linalg.inv(covariance(spread_of(pair, 1e-6, 1.0)))
    np.testing.assert_allclose(undamped, np.kron(x.T @ x, noise), rtol=0.02, atol=0.02)


@pytest.mark.usefixtures("float64")
def test_sampled_weights_and_preactivations_have_the_covariance_they_claim():
    rng = np.random.default_rng(3)
    layer, pair = draw_layer(rng, 4, 2), draw_pair(rng, 4, 2)
    spread = spread_of(pair, 0.5, 0.3)
    h = jnp.asarray(rng.normal(size=(1, 3)))
    drawn = FAMILY.preactivation(KEY, LayerMoments(layer, spread), h, 200_000)[:, 0]
    design = np.kron(np.append(h, 1.0)[None], np.eye(2))
    expected = design @ covariance(spread) @ design.T
    np.testing.assert_allclose(np.cov(drawn.T), expected, rtol=0.03, atol=0.03 * np.abs(expected).max())
    np.testing.assert_allclose(drawn.mean(0), h[0] @ layer.weight + layer.bias, atol=0.01)

    q = MatrixNormal(from_layers([layer]), (spread,))
    weights = jax.jit(jax.vmap(lambda k: rows_of(FAMILY.sample(k, q).head).ravel()))(jax.random.split(KEY, 200_000))
    np.testing.assert_allclose(np.cov(weights.T), covariance(spread), atol=0.03 * np.abs(covariance(spread)).max())
    variances = np.exp(np.asarray(rows_of(FAMILY.marginals(q).log_var.head))).ravel()
    np.testing.assert_allclose(variances, np.diag(covariance(spread)), rtol=1e-9)


@pytest.mark.usefixtures("float64")
def test_the_divergence_is_that_of_the_dense_gaussians():
    rng = np.random.default_rng(4)
    q, p = (
        MatrixNormal(from_layers([draw_layer(rng, 3, 2)]), (spread_of(draw_pair(rng, 3, 2), 0.5, 0.4),))
        for _ in range(2)
    )
    ours, theirs = (covariance(one.spreads[0]) for one in (q, p))
    change = np.ravel(rows_of(q.mean.head) - rows_of(p.mean.head))
    precision = np.linalg.inv(theirs)
    logs = np.linalg.slogdet(theirs)[1] - np.linalg.slogdet(ours)[1]
    exact = 0.5 * (np.trace(precision @ ours) + change @ precision @ change - 6 + logs)
    assert float(FAMILY.kl(q, p)) == pytest.approx(exact, rel=1e-9)
    assert float(FAMILY.kl(q, q)) == pytest.approx(0.0, abs=1e-9)
    draws = np.random.default_rng(0).multivariate_normal(np.ravel(rows_of(q.mean.head)), ours, 50_000)
    ratio = multivariate_normal(np.ravel(rows_of(q.mean.head)), ours).logpdf(draws) - multivariate_normal(
        np.ravel(rows_of(p.mean.head)), theirs
    ).logpdf(draws)
    assert ratio.mean() == pytest.approx(exact, rel=0.05)


def test_the_covariance_is_the_inverse_of_the_damped_precision_times_the_temperature():
    pair = draw_pair(np.random.default_rng(5), 4, 3)
    a, g = np.asarray(pair.inputs), np.asarray(pair.outputs)
    pi = np.sqrt((np.trace(a) / 4) / (np.trace(g) / 3))
    precision = np.kron(a + pi * np.sqrt(0.5) * np.eye(4), g + np.sqrt(0.5) / pi * np.eye(3))
    np.testing.assert_allclose(
        covariance(spread_of(pair, 0.5, 0.25)), 0.25 * np.linalg.inv(precision), rtol=1e-3, atol=1e-4
    )
    prior = spread_of(jax.tree.map(jnp.zeros_like, pair), 4.0, 1.0)
    np.testing.assert_allclose(covariance(prior), np.eye(12) / 4.0, rtol=1e-5)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("images", [False, True])
def test_eigenbasis_and_raw_coordinates_have_the_same_objective_and_gradient(images):
    rng = np.random.default_rng(6)
    shape = (4, 4) if images else (5,)
    spec = StreamSpec(shape, "float32", 3, (0,), 6)
    network = ConvNet((2,), (4,)) if images else KroneckerVCL(hidden=(4,)).architecture
    weights = jax.tree.map(lambda a: a.astype(jnp.float64), select_head(random(KEY, network, spec), 0))
    pairs = tuple(draw_pair(rng, *rows_of(layer).shape) for layer in weights.layers)
    before = jax.tree.map(lambda a: a + 0.1, weights)
    learner = KroneckerVCL(hidden=(4,), strength=2.0)
    spreads = tuple(spread_of(pair, 1.0, 0.1) for pair in pairs)
    x = jnp.asarray(rng.normal(size=(6, spec.input_size)))
    labels = jnp.asarray(rng.integers(0, 3, 6), jnp.int32)
    size = jnp.asarray(6, jnp.int32)
    bases = bases_of(pairs)
    data = with_leverage(rotated_data(bases, weights, Data(x, labels, size)), bases, weights, spreads[0])
    held = Held(bases, rotate(bases, before), spreads, weights)
    batch = Batch(data.inputs, labels, jnp.ones(6, bool), size)

    def raw(layers):
        moved = weights.with_layers([affine_of(rows) for rows in layers])
        changes = [rows_of(a) - rows_of(b) for a, b in zip(moved.layers, before.layers, strict=True)]
        forms = [
            2.0 * jnp.trace(d.T @ pair.inputs @ d @ pair.outputs) + jnp.sum(d * d)
            for d, pair in zip(changes, pairs, strict=True)
        ]
        # The same noise, on pre-activations in raw coordinates.
        identity = bases_of([jax.tree.map(lambda m: jnp.diag(jnp.arange(1.0, len(m) + 1)), p) for p in pairs])
        there = with_leverage(rotated_data(identity, weights, Data(x, labels, size)), identity, weights, spreads[0])
        turned = rotate(identity, moved)
        outputs = rotated_logits(weights, identity, turned, there.inputs, spreads, KEY, 1, learner.family)
        return jnp.mean(cross_entropy(outputs, labels)) + 0.5 * sum(forms) / 6

    layers = tuple(rows_of(layer) for layer in weights.layers)
    value, gradient = jax.jit(jax.value_and_grad(raw))(layers)
    ours, turned = jax.jit(jax.value_and_grad(lambda r: learner.loss(KEY, r, held, batch)))(rotate(bases, weights))
    assert float(ours) == pytest.approx(float(value), rel=1e-9)
    for basis, g, t in zip(bases, gradient, turned, strict=True):
        np.testing.assert_allclose(basis.rotate(g), t, rtol=1e-7, atol=1e-10)


@pytest.mark.usefixtures("float64")
def test_rotated_logits_are_the_network_s_own():
    rng = np.random.default_rng(7)
    weights = from_layers([draw_layer(rng, 6, 4), draw_layer(rng, 5, 3)])
    bases = bases_of([draw_pair(rng, 6, 4), draw_pair(rng, 5, 3)])
    x = jnp.asarray(rng.normal(size=(7, 5)))
    data = rotated_data(bases, weights, Data(x, jnp.zeros(7, jnp.int32), jnp.asarray(7, jnp.int32)))
    found = rotated_logits(weights, bases, rotate(bases, weights), data.inputs)
    np.testing.assert_allclose(found[0], logits(weights, x), rtol=1e-9, atol=1e-9)


def test_without_noise_and_with_one_round_it_is_laplace_in_the_eigenbasis(stream):
    sizes = {"hidden": (8,), "epochs": 4, "batch_size": 16, "learning_rate": 0.02, "schedule": "cosine"}
    ours = KroneckerVCL(**sizes, strength=1.0, temperature=0.0, rounds=1, merging="sums", prior_std=1e4)
    laplace = Laplace(**sizes, strength=1.0, coordinates="eigenbasis")
    data = to_device(stream.train(0), stream.spec.capacity)
    state = ours.init(KEY, stream.spec)
    start = ours.starting_point(KEY, state, Task(0, 0))
    belief = ours.update(KEY, "train", start, believed(state, 0), data, Fitter(), 4, warm=False, state=state, head=0)
    theirs = laplace.init(KEY, stream.spec)
    theirs = dataclasses.replace(theirs, network=from_stacked(theirs.network, start))
    # Both draw their minibatches from the key that the fit is given.
    after = laplace.observe(jax.random.fold_in(KEY, 1), theirs, Task(0, 0), data, Fitter())
    for a, b in zip(jax.tree.leaves(belief.mean), jax.tree.leaves(select_head(after.network, 0)), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)
    for pair, other in zip(belief.pairs[:-1], after.curvature[:-1], strict=True):
        np.testing.assert_allclose(pair.inputs / 60, other.inputs[0], rtol=1e-3, atol=1e-5)


def test_without_noise_a_second_task_is_pulled_as_in_laplace(stream):
    """Both are held by the curvature of the first task. A power of two scales it without touching eigenvectors."""
    sizes = {"hidden": (8,), "epochs": 4, "batch_size": 16, "learning_rate": 0.02, "schedule": "cosine"}
    laplace = Laplace(**sizes, strength=1.0, coordinates="eigenbasis")
    first = laplace.init(KEY, stream.spec)
    first = laplace.observe(KEY, first, Task(0, 0), to_device(stream.train(0), stream.spec.capacity), Fitter())
    data = to_device(stream.train(1), stream.spec.capacity)
    second = laplace.observe(jax.random.fold_in(KEY, 1), first, Task(1, 1), data, Fitter())

    start, known = select_head(first.network, 1), select_curvature(first.curvature, 1)
    prior = Belief(select_head(first.centre, 1), tuple(Kronecker(64 * p.inputs[0], p.outputs[0]) for p in known))
    ours = KroneckerVCL(**sizes, temperature=0.0, rounds=1, merging="sums", prior_std=1e4)
    held, free = (
        dataclasses.replace(ours, strength=strength)
        .update(KEY, "train", start, prior, data, Fitter(), 4, warm=False, state=ours.init(KEY, stream.spec), head=1)
        .mean
        for strength in (int(data.size) / 64, 0.0)
    )
    for a, b in zip(jax.tree.leaves(held), jax.tree.leaves(select_head(second.network, 1)), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-4)
    assert np.abs(held.body[0].weight - start.body[0].weight).max() > 0.05, "it learns"
    assert np.abs(held.body[0].weight - free.body[0].weight).max() > 0.02, "and is held back"


def test_as_the_temperature_falls_it_becomes_laplace(stream):
    """The limit, not only the case of no noise, which is computed in another way."""
    data = to_device(stream.train(0), stream.spec.capacity)
    still, cold, warm = (
        observed.mean.body[0].weight
        for temperature in (0.0, 1e-8, 1.0)
        for learner in [dataclasses.replace(SMALL, temperature=temperature)]
        for observed in [learner.observe(KEY, learner.init(KEY, stream.spec), Task(0, 0), data, Fitter())]
    )
    np.testing.assert_allclose(cold, still, atol=1e-4)
    assert np.abs(warm - still).max() > 5e-3


def from_stacked(network, start):
    return dataclasses.replace(start, head=jax.tree.map(lambda a, b: a.at[0].set(b), network.head, start.head))


def test_laplace_in_the_eigenbasis_wants_one_pair():
    with pytest.raises(VclError, match="--pairs merged"):
        Laplace(coordinates="eigenbasis", pairs="separate")


@pytest.mark.usefixtures("float64")
def test_without_strength_the_loss_is_the_likelihood_under_noise():
    """λ = 0 and a flat prior: fine-tuning; the pairs shape the noise and the coordinates, but pull nothing."""
    rng = np.random.default_rng(9)
    weights = from_layers([draw_layer(rng, 6, 4), draw_layer(rng, 5, 3)])
    pairs = [draw_pair(rng, 6, 4), draw_pair(rng, 5, 3)]
    bases, x, labels = bases_of(pairs), jnp.asarray(rng.normal(size=(7, 5))), jnp.asarray([0, 1, 2, 0, 1, 2, 0])
    spreads = tuple(spread_of(pair, 1.0, 0.5) for pair in pairs)
    data = rotated_data(bases, weights, Data(x, labels, jnp.asarray(7)))
    data = with_leverage(data, bases, weights, spreads[0])
    batch = Batch(data.inputs, labels, jnp.ones(7, bool), jnp.asarray(7))
    turned = rotate(bases, weights)

    def loss(strength, distance):
        learner = KroneckerVCL(strength=strength, prior_std=1e6)
        centre = tuple(layer + distance for layer in turned)
        return float(learner.loss(KEY, turned, Held(bases, centre, spreads, weights), batch))

    outputs = rotated_logits(weights, bases, turned, data.inputs, spreads, KEY, 1, KroneckerVCL().family)
    noisy = float(jnp.mean(cross_entropy(outputs, labels)))
    assert abs(noisy - float(jnp.mean(cross_entropy(logits(weights, x), labels)))) > 0.1, "there is noise"
    assert loss(0.0, 0.0) == pytest.approx(noisy, rel=1e-9)
    assert loss(0.0, 10.0) == pytest.approx(noisy, rel=1e-9), "wherever the earlier mean was"
    assert loss(1.0, 10.0) > noisy + 1.0


def test_a_task_s_curvature_is_expected_under_its_own_spread_or_the_earlier_one(stream):
    inputs = jnp.asarray(stream.train(0).inputs)

    def hidden_power(learner):
        """E[h²], summed over units: what the pair of the upper layer says, and what the posterior does."""
        state = observe(learner, stream, stages=1)[-1]
        told = state.pairs[-1].inputs[0]
        q = learner.posterior(believed(state, 0))
        lower = MatrixNormal(from_layers([q.mean.body[0]]), q.spreads[:1])
        drawn = jax.nn.relu(logits_kronecker(KEY, lower, inputs, 500))
        return float(jnp.trace(told) / told[-1, -1]) - 1.0, float(jnp.sum(drawn**2) / drawn[..., 0].size)

    own, drawn = hidden_power(dataclasses.replace(SMALL, rounds=6, temperature=1.0, curvature_under="own"))
    earlier, _ = hidden_power(dataclasses.replace(SMALL, rounds=6, temperature=1.0))
    assert own == pytest.approx(drawn, rel=0.1)
    assert earlier > 1.3 * own


def test_it_remembers_what_fine_tuning_forgets():
    stream = make_stream(shared_head=True)
    learner = dataclasses.replace(SMALL, epochs=30, strength=3.0)

    def accuracy(one):
        state = observe(one, stream)[-1]
        x, y, _ = stream.test(0)
        x = jnp.asarray(x)
        q = one.readout(KEY, state, Task(0, 0), Fitter())
        return float(np.mean(one.predict(KEY, q, x).mean(0).argmax(1) == y))

    assert accuracy(learner) > accuracy(dataclasses.replace(learner, strength=0.0, prior_std=1e3)) + 0.02


def test_forgetting_nothing_or_all():
    rng = np.random.default_rng(8)
    belief = Belief(from_layers([draw_layer(rng, 4, 3)]), (draw_pair(rng, 4, 3),))
    same, none, half = (partly_forgotten(belief, 0.5, share) for share in (0.0, 1.0, 0.5))
    np.testing.assert_allclose(same.mean.head.weight, belief.mean.head.weight, atol=1e-4)
    assert not np.any(none.pairs[0].inputs)
    np.testing.assert_allclose(none.mean.head.weight, 0.0, atol=1e-6)
    precision = dense(belief.pairs[0])
    mixed = 0.5 * precision + 0.5 * np.eye(12)
    exact = np.linalg.solve(mixed, 0.5 * (precision + 0.5 * np.eye(12)) @ np.ravel(rows_of(belief.mean.head)))
    np.testing.assert_allclose(np.ravel(rows_of(half.mean.head)), exact, rtol=1e-2, atol=1e-3)


def test_the_state_grows_by_the_heads_of_the_tasks_and_by_nothing_else():
    def numbers(heads):
        return SMALL.footprint(SMALL.init(KEY, StreamSpec((6,), "float32", 2, heads, 60))).parameters

    assert numbers((0,) * 20) == numbers((0,) * 3) == numbers((0,))
    head = 9 * 2 + 9 * 9 + 2 * 2  # a mean, and the pair of 9 inputs and 2 outputs
    assert numbers((0, 1, 2)) == numbers((0,)) + 2 * head


def test_the_prior_predicts_by_chance(stream):
    learner = dataclasses.replace(SMALL, test_samples=400)
    untrained = learner.readout(KEY, learner.init(KEY, stream.spec), Task(0, 0), Fitter())
    p = np.exp(learner.predict(KEY, untrained, jnp.asarray(stream.test(0).inputs))).mean(0)
    np.testing.assert_allclose(p, 0.5, atol=0.15)


def test_the_coreset_refines_a_copy(stream):
    learner = dataclasses.replace(SMALL, coreset=7)
    state = observe(learner, stream, stages=1)[-1]
    assert int(state.coreset.filled[0]) == 7
    plain = learner.posterior(believed(state, 0))
    refined = learner.readout(KEY, state, Task(0, 0), Fitter())
    assert not np.array_equal(plain.mean.head.weight, refined.mean.head.weight)
    np.testing.assert_array_equal(plain.mean.head.weight, state.mean.head.weight[0])


def test_analysis_looks_at_the_marginals(tmp_path):
    stream = runs.StreamOptions(num_tasks=2)
    config = runs.configure("split-digits", "kronecker-vcl", threads=1, stream=stream, hidden=(6,), epochs=4)
    runs.run(config, tmp_path)
    run = runs.StoredRun.open(tmp_path / config.name)
    q = run.learner.marginals(run.state())
    spread = run.learner.posterior(believed(run.state(), 1)).spreads
    np.testing.assert_allclose(q.log_var.head.bias[1], np.log(np.diag(covariance(spread[-1]))[-2:]), rtol=1e-4)
    found = analyse(run.folder)
    assert found.counts.shape == (1, 2)
    assert found.counts.min() >= 1
    with pytest.raises(VclError, match="vcl, joint-vcl"):
        prune(run.folder, tmp_path / "small", tolerance=0.01)


def test_epochs_are_shared_among_rounds():
    assert shares(15, 2) == [7, 8]
    assert shares(1, 3) == [1]
    assert sum(shares(10, 4)) == 10


def test_the_schedule_ends_where_there_are_fewer_epochs_than_rounds(stream):
    steps = []

    class Watched(Fitter):
        def __call__(self, key, name, step, *args, **sizes):
            steps.append(step)
            return super().__call__(key, name, step, *args, **sizes)

    learner = dataclasses.replace(SMALL, epochs=1, rounds=2)
    data = to_device(stream.train(0), stream.spec.capacity)
    learner.observe(KEY, learner.init(KEY, stream.spec), stream.task(0), data, Watched())
    assert [(step.number, step.rounds) for step in steps] == [(0, 1)]


def test_convolutions_are_held_where_the_first_task_has_put_them():
    """A bright corner at the top means one class; in the second task one at the bottom means the other."""
    stream = image_stream()
    learner = dataclasses.replace(SMALL, network=ConvNet((3,), (6,)), epochs=20)

    def accuracies(**settings):
        one = dataclasses.replace(learner, **settings)
        state = observe(one, stream, stages=2)[-1]
        q = one.readout(KEY, state, Task(0, 0), Fitter())
        tests = [stream.test(number) for number in (0, 1)]
        answers = [one.predict(KEY, q, jnp.asarray(test.inputs)).mean(0).argmax(1) for test in tests]
        return [float(np.mean(a == test.labels)) for a, test in zip(answers, tests, strict=True)]

    held, free = accuracies(strength=100.0), accuracies(strength=0.0, temperature=0.0, prior_std=1e3)
    assert held[0] > 0.7 > free[0]
    assert free[1] > 0.7 > held[1]


def image_stream():
    def images(seed, turned, n=60):
        rng = np.random.default_rng(seed)
        labels = rng.integers(0, 2, n)
        x = rng.normal(0, 0.8, (n, 6, 6))
        x[labels == 1, :3, :3] += 1.0
        return (x[:, ::-1] if turned else x).astype(np.float32), 1 - labels if turned else labels

    tasks = [(*images(0, False), *images(1, False)), (*images(2, True), *images(3, True))]
    return from_arrays(tasks, shared_head=True)


def test_published_is_bayes_rule():
    for settings in KroneckerVCL.recipes["published"].values():
        assert (settings["strength"], settings["temperature"], settings["curvature_under"]) == (1.0, 1.0, "own")


def test_affine_and_rows_are_inverse():
    layer = Affine(jnp.ones((2, 3)), jnp.arange(3.0))
    assert np.array_equal(affine_of(rows_of(layer)).bias, layer.bias)
