"""`fit`: the one compiled loop that every learner shares."""

import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import MethodType
from typing import Any, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Int, Key, PyTree, Shaped

from vcl.core import Examples
from vcl.errors import VclError

SECONDS_PER_CALL = 0.5
COOL_DOWN = 0.2
"""Part of a fit over which the `plateau` schedule falls to zero."""


class Data(eqx.Module):
    """Examples on the device, in arrays of a fixed capacity of which the first `size` rows are real.

    A fixed capacity lets tasks of different sizes share one compiled program.
    """

    inputs: Shaped[Array, "capacity d"]
    labels: Shaped[Array, "capacity"]
    """Classes as int32, or numbers as float32, where these are to be learnt."""
    size: Int[Array, ""]
    groups: Int[Array, "capacity"] | None = None
    """The head (or task) of each example, where examples of several tasks are mixed."""

    @property
    def capacity(self) -> int:
        return int(self.labels.shape[0])


class Batch(eqx.Module):
    """A minibatch; `mask` is false for the rows that fill up an epoch's last one."""

    inputs: Shaped[Array, "b d"]
    labels: Shaped[Array, "b"]
    mask: Bool[Array, "b"]
    size: Int[Array, ""]
    """How many examples there are in all: N in the paper."""
    groups: Int[Array, "b"] | None = None


def to_device(examples: Examples, capacity: int) -> Data:
    """Put examples on the device, padded to `capacity` rows."""
    missing = capacity - len(examples.labels)
    if missing < 0:
        raise VclError(
            f"{len(examples.labels)} examples arrived where there is room for {capacity}. Grow the state first."
        )
    # Padding copies, even by nothing.
    inputs = np.pad(examples.inputs, ((0, missing), (0, 0))) if missing else examples.inputs
    labels = np.pad(examples.labels, (0, missing))
    groups = None if examples.groups is None else jnp.asarray(np.pad(examples.groups, (0, missing)), jnp.int32)
    size = jnp.asarray(len(examples.labels), jnp.int32)
    kind = jnp.float32 if np.issubdtype(labels.dtype, np.floating) else jnp.int32
    return Data(jnp.asarray(inputs), jnp.asarray(labels, kind), size, groups)


def take(data: Data, rows: Int[Array, "b"], mask: Bool[Array, "b"]) -> Batch:
    """These rows as a minibatch."""
    groups = None if data.groups is None else data.groups[rows]
    return Batch(data.inputs[rows], data.labels[rows], mask, data.size, groups)


def classes_in(data: Data, num_classes: int) -> Bool[Array, "{num_classes}"]:
    """Which classes occur among the real rows."""
    real = jnp.arange(data.capacity) < data.size
    return jnp.zeros(num_classes, bool).at[data.labels].max(real)


def masked_mean(values: Float[Array, "*s b"], mask: Bool[Array, "b"]) -> Float[Array, ""]:
    """Mean over the real rows of a minibatch (and over samples)."""
    mean = jnp.mean(values.reshape(-1, values.shape[-1]), axis=0)
    return jnp.sum(mean * mask) / jnp.sum(mask)


@runtime_checkable
class Step(Protocol):
    """What one minibatch does to whatever is carried along. It must be hashable: it is compiled in."""

    def init(self, params: PyTree) -> PyTree:
        """What is carried along, beginning at `params`."""

    def params(self, carry: PyTree) -> PyTree:
        """The parameters within what is carried along."""

    def __call__(
        self, key: Key[Array, ""], carry: PyTree, args: PyTree, batch: Batch, progress: Float[Array, ""]
    ) -> tuple[PyTree, Float[Array, ""]]:
        """One update; `progress` runs from 0 to 1 over the whole fit. Returns the objective too."""


def learning_rate(schedule: str, progress: Float[Array, ""]) -> Float[Array, ""]:
    """The factor on the learning rate at `progress` in [0, 1)."""
    if schedule == "constant":
        return jnp.ones_like(progress)
    if schedule == "cosine":
        return 0.5 * (1.0 + jnp.cos(jnp.pi * progress))
    if schedule == "plateau":
        return jnp.minimum(1.0, (1.0 - progress) / COOL_DOWN)
    raise VclError(f"There is no learning-rate schedule {schedule!r}. Known: {', '.join(SCHEDULES)}.")


SCHEDULES = ("constant", "cosine", "plateau")


def unscaled(params: PyTree, direction: PyTree) -> PyTree:
    return direction


OPTIMIZERS = {"adam": optax.scale_by_adam(), "sgd": optax.identity()}
"""What makes a direction of a gradient."""


@functools.partial(jax.jit, static_argnames="optimizer")
def first_moments(optimizer: str, params: PyTree) -> PyTree:
    """The optimiser's moments before any step."""
    return OPTIMIZERS[optimizer].init(params)


def descend(
    optimizer: str,
    params: PyTree,
    moments: PyTree,
    gradient: PyTree,
    rate: float | Float[Array, ""],
    scale: Callable[[PyTree, PyTree], PyTree] = unscaled,
) -> tuple[PyTree, PyTree]:
    """One update along a given gradient: the parameters and the optimiser's moments after it."""
    direction, moments = OPTIMIZERS[optimizer].update(gradient, moments)
    direction = scale(params, direction)
    return jax.tree.map(lambda p, d: p - rate * d, params, direction), moments


@dataclass(frozen=True)
class Method:
    """A bound method that equals another one of an equal owner, so that what was compiled for one serves both."""

    owner: Any
    function: Callable[..., Any]

    def __call__(self, *args: Any, **settings: Any) -> Any:
        return self.function(self.owner, *args, **settings)


def by_value(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function to compile for; Python's own bound methods are equal only if their owner is the same object."""
    return Method(function.__self__, function.__func__) if isinstance(function, MethodType) else function


@dataclass(frozen=True)
class Adam:
    """Adam (Kingma & Ba, 2014) on `loss(key, params, args, batch)`, lower is better.

    `scale(params, direction)` gives parameters learning rates of their own.
    """

    loss: Callable[[Key[Array, ""], PyTree, PyTree, Batch], Float[Array, ""]]
    rate: float
    schedule: str = "constant"
    scale: Callable[[PyTree, PyTree], PyTree] = unscaled

    def __post_init__(self) -> None:
        object.__setattr__(self, "loss", by_value(self.loss))
        object.__setattr__(self, "scale", by_value(self.scale))

    def init(self, params: PyTree) -> PyTree:
        return params, first_moments("adam", params)

    def params(self, carry: PyTree) -> PyTree:
        return carry[0]

    def __call__(
        self, key: Key[Array, ""], carry: PyTree, args: PyTree, batch: Batch, progress: Float[Array, ""]
    ) -> tuple[PyTree, Float[Array, ""]]:
        params, moments = carry
        objective, gradient = jax.value_and_grad(self.loss, argnums=1)(key, params, args, batch)
        # The update waits for the objective: XLA may then write it over the parameters, which the objective reads.
        # Otherwise it copies them in every step.
        rate = self.rate * learning_rate(self.schedule, progress) + 0.0 * objective
        return descend("adam", params, moments, gradient, rate, self.scale), objective


@jax.jit
def copied(tree: PyTree) -> PyTree:
    """A copy of every array, with a strong type like those that a loop returns: a weak one is compiled for anew."""
    return jax.tree.map(lambda a: jnp.array(a, a.dtype), tree)


def run_epochs(
    step: Step,
    batch_size: int,
    key: Key[Array, ""],
    carry: PyTree,
    history: Float[Array, "epochs"],
    args: PyTree,
    data: Data,
    first: Int[Array, ""],
    last: Int[Array, ""],
) -> tuple[PyTree, Float[Array, "epochs"]]:
    """Epochs `first` to `last` - 1. How they are cut into calls does not change a bit of the result."""
    steps = -(-data.size // batch_size)
    rows = jnp.arange(batch_size)

    def epoch(number: Int[Array, ""], loop: PyTree) -> PyTree:
        carry, history = loop
        epoch_key = jax.random.fold_in(key, number)
        order = jnp.pad(shuffle(epoch_key, data), (0, batch_size))

        def minibatch(i: Int[Array, ""], inner: PyTree) -> PyTree:
            carry, total = inner
            chosen = jax.lax.dynamic_slice(order, (i * batch_size,), (batch_size,))
            mask = i * batch_size + rows < data.size
            batch = take(data, chosen, mask)
            progress = (number * steps + i) / (history.shape[0] * steps)
            carry, objective = step(jax.random.fold_in(epoch_key, i), carry, args, batch, progress)
            return carry, total + objective

        carry, total = jax.lax.fori_loop(0, steps, minibatch, (carry, jnp.zeros(())))
        return carry, history.at[number].set(total / steps)

    return jax.lax.fori_loop(first, last, epoch, (carry, history))


WIDE_VECTORS = {"xla_cpu_prefer_vector_width": 512}
"""XLA uses half of the vectors of a processor with AVX-512 unless it is told to use them whole."""


@functools.cache
def compiled_epochs() -> Any:
    """`run_epochs`, compiled for whole vectors where XLA has that option. `carry` and `history` are used up."""
    return jax.jit(
        run_epochs,
        static_argnames=("step", "batch_size"),
        donate_argnames=("carry", "history"),
        compiler_options=WIDE_VECTORS if compiles_with(WIDE_VECTORS) else None,
    )


def compiles_with(options: dict[str, int]) -> bool:
    """Whether XLA compiles with these options here: it refuses those that it does not know."""
    if jax.default_backend() != "cpu":
        return False
    try:
        jax.jit(lambda: jnp.zeros(()), compiler_options=options).lower().compile()
    except RuntimeError:
        return False
    return True


def shuffle(key: Key[Array, ""], data: Data) -> Int[Array, "capacity"]:
    """The real rows in random order, the filling after them."""
    draws = jax.random.bits(key, (data.capacity,)) >> 1
    filling = jnp.arange(data.capacity) >= data.size
    return jnp.argsort(jnp.where(filling, jnp.uint32(0xFFFFFFFF), draws))


@runtime_checkable
class Recorder(Protocol):
    """Where a fit keeps its checkpoints and tells how it is getting on."""

    def restore(self, phase: str, like: PyTree) -> tuple[int, PyTree] | None:
        """The newest good checkpoint of `phase`: the number of epochs done, and what was carried along."""

    def advance(self, phase: str, epoch: int, epochs: int, history: Float[np.ndarray, "epochs"]) -> None:
        """`epoch` of `epochs` are done."""

    def save(self, phase: str, epoch: int, carry: PyTree, *, last: bool) -> None:
        """Keep a checkpoint if it is time for one; always when it is the `last` one of the phase."""


class NoRecorder:
    """Forgets everything: for fits that nobody watches and that start afresh when interrupted."""

    def restore(self, phase: str, like: PyTree) -> tuple[int, PyTree] | None:
        return None

    def advance(self, phase: str, epoch: int, epochs: int, history: Float[np.ndarray, "epochs"]) -> None: ...

    def save(self, phase: str, epoch: int, carry: PyTree, *, last: bool) -> None: ...


@runtime_checkable
class Tracer(Protocol):
    """Takes snapshots of the parameters now and then during a fit; it must not change them."""

    def epochs(self, phase: str, total: int) -> Sequence[int]:
        """After how many epochs of `phase` to take one; 0 is before the first."""

    def snapshot(self, phase: str, epoch: int, params: PyTree, args: PyTree, data: Data) -> None:
        """`epoch` epochs are done. The memory of `params` is used again afterwards: copy what is to be kept."""


class NoTracer:
    """Takes none."""

    def epochs(self, phase: str, total: int) -> Sequence[int]:
        return ()

    def snapshot(self, phase: str, epoch: int, params: PyTree, args: PyTree, data: Data) -> None: ...


@dataclass
class Fitter:
    """Runs `step` over `data`, continuing where an earlier process was interrupted.

    One fitter serves one `observe` or one round of `readout`s. A name stands for one fit: asking again under the
    same name gives the same answer without work, so that tasks which share a read-out compute it once.
    """

    recorder: Recorder = field(default_factory=NoRecorder)
    tracer: Tracer = field(default_factory=NoTracer)
    finished: dict[str, PyTree] = field(default_factory=dict)
    steps: int = 0

    def __call__(
        self,
        key: Key[Array, ""],
        name: str,
        step: Step,
        params: PyTree,
        args: PyTree,
        data: Data,
        *,
        epochs: int,
        batch_size: int,
    ) -> PyTree:
        if name in self.finished:
            return self.finished[name]
        batch_size = min(batch_size, data.capacity)
        # The loop gives its input's memory to its output, so it must own what it is handed.
        start = copied((step.init(params), jnp.zeros(epochs)))
        done, (carry, history) = self.recorder.restore(name, start) or (0, start)
        snapshots = self.tracer.epochs(name, epochs)
        if done in snapshots:
            self.tracer.snapshot(name, done, step.params(carry), args, data)
        at_once = 1
        while done < epochs:
            began = time.perf_counter()
            last = min(e for e in (done + at_once, epochs, *snapshots) if e > done)
            carry, history = compiled_epochs()(
                step, batch_size, key, carry, history, args, data, jnp.int32(done), jnp.int32(last)
            )
            objectives = np.asarray(history)
            if not np.isfinite(objectives[done:last]).all():
                raise diverged(name, done + int(np.argmin(np.isfinite(objectives[done:last]))))
            seconds = time.perf_counter() - began
            if last > done + at_once // 2 and seconds < SECONDS_PER_CALL / 2:
                at_once *= 2
            done = last
            # Before the checkpoint, which then vouches for the snapshot.
            if done in snapshots:
                self.tracer.snapshot(name, done, step.params(carry), args, data)
            self.recorder.advance(name, done, epochs, objectives)
            self.recorder.save(name, done, (carry, history), last=done == epochs)
        self.steps += epochs * -(-int(data.size) // batch_size)
        self.finished[name] = step.params(carry)
        return self.finished[name]


def diverged(phase: str, epoch: int) -> VclError:
    return VclError(
        f"The objective stopped being a finite number in epoch {epoch + 1} of {phase!r}, so training stopped. "
        "The last good checkpoint is intact. Most often the learning rate is too high (lower --learning-rate "
        "and start again), or the inputs are far from the range [0, 1]."
    )
