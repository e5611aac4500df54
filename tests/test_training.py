import itertools
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from vcl.core import Examples
from vcl.errors import VclError
from vcl.training import (
    WIDE_VECTORS,
    Adam,
    Data,
    Fitter,
    NoRecorder,
    compiled_epochs,
    compiles_with,
    learning_rate,
    shuffle,
    to_device,
)


def numbered(size: int, capacity: int) -> Data:
    """Examples whose label is their number."""
    inputs = np.arange(size, dtype=np.float32)[:, None] + 1.0
    return to_device(Examples(inputs, np.arange(size)), capacity)


@dataclass(frozen=True)
class CountVisits:
    """Counts how often each example is visited."""

    def init(self, params):
        return params

    def params(self, carry):
        return carry

    def __call__(self, key, carry, args, batch, progress):
        return carry.at[batch.labels].add(batch.mask.astype(carry.dtype)), progress


@pytest.mark.parametrize(
    ("size", "capacity", "batch"), [(10, 10, 4), (7, 12, 4), (8, 8, 8), (3, 9, 5), (12, 12, 50)]
)
def test_every_epoch_visits_every_example_once(size, capacity, batch):
    fit = Fitter()
    visits = fit(
        jax.random.key(0), "count", CountVisits(), jnp.zeros(capacity), None, numbered(size, capacity),
        epochs=3, batch_size=batch,
    )  # fmt: skip
    np.testing.assert_array_equal(visits, [3.0] * size + [0.0] * (capacity - size))
    assert fit.steps == 3 * -(-size // batch)


def test_shuffles_differ_between_epochs_and_keep_the_filling_last():
    data = numbered(20, 30)
    first, second = (shuffle(jax.random.key(k), data) for k in (0, 1))
    assert not np.array_equal(first[:20], second[:20])
    assert sorted(np.asarray(first[:20])) == list(range(20))


def loss(key, params, args, batch):
    noise = 0.1 * jax.random.normal(key)
    errors = (batch.inputs[:, 0] * params["w"] + params["b"] + noise - args) ** 2
    return jnp.sum(errors * batch.mask) / jnp.sum(batch.mask)


def test_how_epochs_are_cut_into_calls_does_not_change_a_bit():
    step, data = Adam(loss, 0.05, "cosine"), numbered(23, 30)
    results = []
    for cuts in ([0, 6], [0, 1, 2, 3, 4, 5, 6], [0, 4, 6]):
        carry, history = step.init({"w": jnp.array(0.3), "b": jnp.array(-0.2)}), jnp.zeros(6)
        for first, last in itertools.pairwise(cuts):
            carry, history = compiled_epochs()(
                step, 5, jax.random.key(1), carry, history, jnp.array(2.0), data, jnp.int32(first), jnp.int32(last)
            )
        results.append(jax.tree.map(np.asarray, (carry, history)))
    for other in results[1:]:
        jax.tree.map(np.testing.assert_array_equal, results[0], other)


def test_adam_steps_like_optax():
    step, data, optimiser = Adam(loss, 0.05), numbered(4, 4), optax.adam(0.05)
    params = {"w": jnp.array(0.3), "b": jnp.array(-0.2)}
    fitted = Fitter()(jax.random.key(1), "fit", step, params, jnp.array(2.0), data, epochs=5, batch_size=4)

    state = optimiser.init(params)
    key = jax.random.key(1)
    for epoch in range(5):
        epoch_key = jax.random.fold_in(key, epoch)
        order = shuffle(epoch_key, data)
        noise_key = jax.random.fold_in(epoch_key, 0)

        def objective(p, noise_key=noise_key, order=order):
            noise = 0.1 * jax.random.normal(noise_key)
            return jnp.mean((data.inputs[order, 0] * p["w"] + p["b"] + noise - 2.0) ** 2)

        updates, state = optimiser.update(jax.grad(objective)(params), state)
        params = optax.apply_updates(params, updates)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4), fitted, params)


def test_options_that_the_compiler_does_not_know_are_left_out():
    assert compiles_with(WIDE_VECTORS)
    assert not compiles_with({"xla_cpu_no_such_option": 1})


def test_tasks_of_other_sizes_share_the_compiled_loop():
    step, fit = Adam(loss, 0.01), Fitter()
    start = {"w": jnp.array(0.3), "b": jnp.array(0.0)}
    compiled_epochs().clear_cache()
    for size in (23, 17, 30):
        fit(jax.random.key(0), f"{size}", step, start, jnp.array(1.0), numbered(size, 30), epochs=4, batch_size=5)
    assert compiled_epochs()._cache_size() == 1


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [("constant", [1, 1, 1]), ("cosine", [1, 0.5, 0]), ("plateau", [1, 1, 0])],
)
def test_schedules_start_at_one(schedule, expected):
    found = [learning_rate(schedule, jnp.array(p)) for p in (0.0, 0.5, 1.0)]
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_an_objective_that_is_not_finite_stops_with_a_word():
    step = Adam(lambda key, params, args, batch: jnp.log(params - 1.0) * batch.mask.sum(), 10.0)
    with pytest.raises(VclError, match=r"epoch 1 of 'fit'.*learning rate"):
        Fitter()(jax.random.key(0), "fit", step, jnp.array(0.5), None, numbered(5, 5), epochs=3, batch_size=5)


def test_a_name_stands_for_one_fit():
    step, fit, start = Adam(loss, 0.01), Fitter(), {"w": jnp.array(0.3), "b": jnp.array(0.0)}
    data = numbered(5, 5)
    first = fit(jax.random.key(0), "a", step, start, jnp.array(1.0), data, epochs=2, batch_size=5)
    again = fit(jax.random.key(9), "a", step, start, jnp.array(7.0), data, epochs=2, batch_size=5)
    assert again is first


def test_a_fit_continues_from_its_recorders_checkpoint():
    class Memory(NoRecorder):
        kept: tuple[int, object] | None = None
        limit = 3

        def restore(self, phase, like):
            return self.kept

        def save(self, phase, epoch, carry, *, last):
            self.kept = (epoch, jax.tree.map(jnp.array, carry))
            if epoch >= self.limit:
                raise KeyboardInterrupt

    step, start, data = Adam(loss, 0.01), {"w": jnp.array(0.3), "b": jnp.array(0.0)}, numbered(5, 5)
    arguments = (jax.random.key(0), "a", step, start, jnp.array(1.0), data)
    whole = Fitter()(*arguments, epochs=40, batch_size=2)
    memory = Memory()
    with pytest.raises(KeyboardInterrupt):
        Fitter(memory)(*arguments, epochs=40, batch_size=2)
    assert 3 <= memory.kept[0] < 40
    memory.limit = 1000
    jax.tree.map(np.testing.assert_array_equal, whole, Fitter(memory)(*arguments, epochs=40, batch_size=2))
