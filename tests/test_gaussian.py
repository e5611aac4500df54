import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from vcl.posteriors.mean_field import Gaussian, fast_kl, isotropic, kl, log_prob, sample

numbers = st.floats(-2, 2)


def two(seed: int) -> Gaussian:
    a, b, c, d = jax.random.split(jax.random.key(seed), 4)
    return Gaussian(
        {"w": jax.random.normal(a, (3, 2)), "b": jax.random.normal(b, (2,))},
        {"w": jax.random.normal(c, (3, 2)), "b": jax.random.normal(d, (2,))},
    )


@settings(deadline=None, max_examples=30)
@given(numbers, numbers, numbers, numbers)
def test_kl_equals_the_integral(m, v, pm, pv):
    q, p = stats.norm(m, np.exp(v / 2)), stats.norm(pm, np.exp(pv / 2))
    ends = (m - 12 * np.exp(v / 2), m + 12 * np.exp(v / 2))
    expected = integrate.quad(lambda x: q.pdf(x) * (q.logpdf(x) - p.logpdf(x)), *ends)[0]
    with jax.enable_x64(True):
        found = kl(Gaussian(jnp.array(m), jnp.array(v)), Gaussian(jnp.array(pm), jnp.array(pv)))
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-8)


@pytest.mark.usefixtures("float64")
def test_kl_equals_its_monte_carlo_estimate_within_four_standard_errors():
    q, p = two(0), two(1)
    draws = jax.jit(jax.vmap(lambda k: sample(k, q)))(jax.random.split(jax.random.key(2), 40_000))
    ratios = jax.jit(jax.vmap(lambda theta: log_prob(q, theta) - log_prob(p, theta)))(draws)
    assert abs(ratios.mean() - kl(q, p)) < 4 * ratios.std() / np.sqrt(len(ratios))


def test_the_fast_kl_and_its_gradient_equal_the_plain_one():
    shapes = {"bias": (5,), "weight": (7, 5), "heads": (3, 5, 2)}
    rng = np.random.default_rng(0)

    def drawn(scale):
        return {name: jnp.asarray(scale * rng.normal(size=shape), jnp.float32) for name, shape in shapes.items()}

    q, p = (Gaussian(drawn(0.5), drawn(2.0)) for _ in range(2))
    plain, fast = (jax.value_and_grad(each)(q, p) for each in (kl, fast_kl))
    for a, b in zip(jax.tree.leaves(plain), jax.tree.leaves(fast), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def test_kl_to_itself_is_zero():
    np.testing.assert_allclose(kl(two(3), two(3)), 0.0, atol=1e-6)


@pytest.mark.usefixtures("float64")
def test_log_prob_is_scipys():
    q, theta = two(0), two(1).mean
    expected = sum(stats.norm.logpdf(theta[n], q.mean[n], np.exp(q.log_var[n] / 2)).sum() for n in ("w", "b"))
    np.testing.assert_allclose(log_prob(q, theta), expected, rtol=1e-10)


def test_isotropic_has_the_standard_deviation_asked_for():
    q = isotropic({"w": jnp.zeros((2, 3))}, 0.5, 0.3)
    np.testing.assert_allclose(q.mean["w"], 0.5)
    np.testing.assert_allclose(jnp.exp(0.5 * q.log_var["w"]), 0.3, rtol=1e-6)


@pytest.mark.usefixtures("float64")
def test_the_recursion_on_conjugate_linear_regression_is_the_batch_posterior():
    """Equation 1, batch after batch, on orthogonal features, where the exact posterior is mean field.

    With y = x·θ + ε, ε ~ N(0, s²), the posterior has precision 1 + Σ x²/s² and mean precision⁻¹ Σ x y / s². At the
    posterior of all data, the objective of the last batch, with the posterior of the others as prior, is stationary.
    """
    rng = np.random.default_rng(0)
    noise = 0.5
    # Each row has one feature, so that features are orthogonal in every batch.
    x = np.eye(4)[rng.integers(0, 4, 60)] * rng.normal(size=(60, 1))
    y = x @ rng.normal(size=4) + noise * rng.normal(size=60)

    def exact(rows):
        precision = 1.0 + (x[rows] ** 2).sum(0) / noise**2
        return Gaussian(jnp.asarray((x[rows].T @ y[rows]) / noise**2 / precision), jnp.asarray(-np.log(precision)))

    def objective(q, prior, rows):
        expected = (y[rows] - x[rows] @ q.mean) ** 2 + x[rows] ** 2 @ jnp.exp(q.log_var)
        return 0.5 * jnp.sum(expected) / noise**2 + kl(q, prior)

    prior = isotropic(jnp.zeros(4), 0.0, 1.0)
    for end in (20, 40, 60):
        posterior = exact(slice(0, end))
        gradient = jax.grad(objective)(posterior, prior, slice(end - 20, end))
        np.testing.assert_allclose(gradient.mean, 0.0, atol=1e-10)
        np.testing.assert_allclose(gradient.log_var, 0.0, atol=1e-10)
        elsewhere = Gaussian(posterior.mean + 0.1, posterior.log_var)
        assert objective(elsewhere, prior, slice(end - 20, end)) > objective(posterior, prior, slice(end - 20, end))
        prior = posterior
