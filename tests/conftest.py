"""Shapes and types of every function in vcl are checked while the tests run."""

import os
from pathlib import Path

# Programs in tests run for a moment: optimising them takes longer than it saves. Subprocesses take it over.
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false "
    "--xla_cpu_parallel_codegen_split_count=1 --xla_cpu_enable_concurrency_optimized_scheduler=false",
)

# Compiling takes most of the time: all workers, their subprocesses and later sessions share what was compiled.
COMPILED = Path(os.environ.get("VCL_TEST_CACHE") or Path(__file__).parent.parent / ".pytest_cache" / "compiled")
os.environ["JAX_COMPILATION_CACHE_DIR"] = str(COMPILED.absolute())
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"

from jaxtyping import install_import_hook  # noqa: E402

install_import_hook("vcl", "beartype.beartype")

import ctypes  # noqa: E402
import functools  # noqa: E402
import gc  # noqa: E402
import importlib  # noqa: E402
import resource  # noqa: E402
import signal  # noqa: E402
from collections.abc import Callable, Iterator  # noqa: E402

import jax  # noqa: E402
import numpy as np  # noqa: E402
import pytest  # noqa: E402

from vcl.benchmarks.streams import from_arrays  # noqa: E402
from vcl.core import Stream  # noqa: E402

# The oldest version that is supported has it elsewhere: `make test-jax`.
if not hasattr(jax, "enable_x64"):
    from jax import experimental

    jax.enable_x64 = experimental.enable_x64

# A shell starts what it puts in the background with these ignored, and children inherit that: the tests send them.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

LONGEST = ("test_docs", "test_sklearn", "test_cli")
"""Files that would keep one process busy when the others are done."""
MOST_MAPPINGS = 20_000
MOST_BYTES, MORE_BYTES = 1_500_000_000, 250_000_000


def one_mlir_context() -> Callable[[], None]:
    """A fresh context for every program takes a third of the time of a small one; a process can do with one.

    Returns what drops it. JAX does not promise the place, so that with another version tests may only take longer.
    """
    mlir = importlib.import_module("jax._src.interpreters.mlir")
    if not hasattr(mlir, "make_ir_context"):
        return lambda: None
    mlir.make_ir_context = functools.cache(mlir.make_ir_context)
    return mlir.make_ir_context.cache_clear


drop_mlir_context = one_mlir_context()


def resident() -> int:
    """Bytes of memory that this process has."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


class Room:
    """Drops compiled programs in time: they take memory and mappings, of which Linux gives a process 65530.

    Best between two groups of tests, which share programs among them only.
    """

    most_bytes = MOST_BYTES
    group: str | None = None

    @classmethod
    def make(cls, group: str) -> None:
        mappings = len(Path("/proc/self/maps").read_bytes().splitlines())
        another, cls.group = group != cls.group, group
        if resident() > (cls.most_bytes - MORE_BYTES if another else cls.most_bytes) or mappings > MOST_MAPPINGS:
            jax.clear_caches()
            drop_mlir_context()
            gc.collect()
            ctypes.CDLL(None).malloc_trim(0)
            # What cannot be given back must not make every test clear the caches.
            cls.most_bytes = max(MOST_BYTES, resident() + MORE_BYTES)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """One process runs a file, or all of a method, and so makes fixtures and programs once; the longest first."""
    places: dict[str, tuple[bool, int]] = {}
    for place, item in enumerate(items):
        if not item.get_closest_marker("xdist_group"):
            item.add_marker(pytest.mark.xdist_group(item.path.stem))
        places.setdefault(group_of(item), (item.path.stem not in LONGEST, place))
    items.sort(key=lambda item: places[group_of(item)])


def group_of(item: pytest.Item) -> str:
    return str(item.get_closest_marker("xdist_group").args[0])


def pytest_collection_finish() -> None:
    """What is loaded now stays: the garbage collector need not look through it again and again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def room_for_programs(request) -> None:
    Room.make(group_of(request.node))


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
