"""Shapes and types of every function in vcl are checked while the tests run."""

from jaxtyping import install_import_hook

install_import_hook("vcl", "beartype.beartype")

from collections.abc import Iterator  # noqa: E402

import jax  # noqa: E402
import numpy as np  # noqa: E402
import pytest  # noqa: E402

from vcl.benchmarks.streams import from_arrays  # noqa: E402
from vcl.core import Stream  # noqa: E402


@pytest.fixture
def float64() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


def blobs(task: int, examples: int = 60) -> tuple[np.ndarray, np.ndarray]:
    """Two clouds in six dimensions, apart along an axis that belongs to the task."""
    rng = np.random.default_rng([7, task])
    labels = rng.integers(0, 2, examples)
    inputs = rng.normal(0, 0.3, (examples, 6))
    inputs[:, task] += 2.0 * labels - 1.0
    return inputs.astype(np.float32), labels


def make_stream(*, shared_head: bool = False, sizes: tuple[int, ...] = (60, 47, 55)) -> Stream:
    """Three small tasks of different sizes, learnt in a moment."""
    return from_arrays([(*blobs(t, n), *blobs(t, 40)) for t, n in enumerate(sizes)], shared_head=shared_head)


@pytest.fixture
def stream() -> Stream:
    return make_stream()
