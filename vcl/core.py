"""The vocabulary: tasks, streams of them, and learners.

Continual learning is a fold. A learner starts with `init`, observes what arrives stage by stage, and all that
it has learnt is in its state: a pytree of arrays. Their shapes follow from a `StreamSpec`; `grow` takes a state to a
larger one, when more tasks, classes or examples arrive than it has room for.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, runtime_checkable

import jax
import numpy as np
from jaxtyping import Array, Float, Key, PyTree, Shaped

from vcl.errors import VclError


class Examples(NamedTuple):
    """Inputs (uint8 pixels, scaled to [0, 1] when they are read, or floats as they are) and their labels."""

    inputs: Shaped[np.ndarray, "n d"]
    labels: Shaped[np.ndarray, "n"]
    groups: Shaped[np.ndarray, "n"] | None = None
    """The head (or task) that each example belongs to, where examples of several tasks are mixed."""


@dataclass(frozen=True)
class Task:
    """Which task: known while learning, and while testing too. `head` is the output layer that answers for it."""

    index: int
    head: int
    batch: int = 0
    """How many batches of this task's data were learnt before this one."""


Scenario = Literal["task", "domain", "class"]
"""A head for each task; one head whose classes all tasks share; one head over classes that tasks bring in turn."""


@dataclass(frozen=True)
class StreamSpec:
    """What a learner must know of a stream: sizes, from which the shapes of its state follow.

    Examples
    --------
    >>> spec = StreamSpec((28, 28), "uint8", num_classes=2, heads=(0, 1, 2), capacity=12_000)
    >>> spec.num_tasks, spec.input_size
    (3, 784)
    >>> spec.task(3)
    Traceback (most recent call last):
        ...
    vcl.errors.VclError: There is no task 4: there are 3.
    """

    input_shape: tuple[int, ...]
    input_dtype: str
    num_classes: int
    heads: tuple[int, ...]
    capacity: int
    """Most training examples that ever arrive at once."""
    scenario: Scenario = "task"

    @staticmethod
    def from_json(value: dict[str, Any]) -> "StreamSpec":
        """A spec that was written as JSON, whose lists were tuples."""
        sizes: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in value.items()}
        return StreamSpec(**sizes)

    @property
    def input_size(self) -> int:
        return int(np.prod(self.input_shape))

    @property
    def num_tasks(self) -> int:
        return len(self.heads)

    @property
    def num_heads(self) -> int:
        return max(self.heads) + 1

    @property
    def shares_head(self) -> bool:
        """Whether one head answers for all tasks. A single task has one head in every scenario."""
        return self.num_heads == 1 and (self.num_tasks > 1 or self.scenario != "task")

    def task(self, index: int) -> Task:
        """Task number `index`, counted from 0."""
        check_index("task", index, self.num_tasks)
        return Task(index, self.heads[index])


@dataclass(frozen=True)
class Stream:
    """Tasks in order. `stages` lists the task of each batch that arrives; usually there is one batch per task.

    `train(stage)` and `test(task)` make the examples when they are asked for, so that a long stream of
    permuted images holds one copy of the data.
    """

    name: str
    spec: StreamSpec
    task_names: tuple[str, ...]
    stages: tuple[int, ...]
    train: Callable[[int], Examples]
    test: Callable[[int], Examples]

    def task(self, stage: int) -> Task:
        """The task that a stage brings data of, and how many batches of it came before."""
        index = self.stages[stage]
        return replace(self.spec.task(index), batch=self.stages[:stage].count(index))

    def ends_task(self, stage: int) -> bool:
        """Whether `stage` is the last one that brings data of its task."""
        return self.stages[stage] not in self.stages[stage + 1 :]


State = Any
Params = Any


@runtime_checkable
class Fit(Protocol):
    """Minimise: run `step` from `params` over `data`. `vcl.training.Fitter` is the implementation."""

    def __call__(
        self,
        key: Key[Array, ""],
        name: str,
        step: Any,
        params: PyTree,
        args: PyTree,
        data: Any,
        *,
        epochs: int,
        batch_size: int,
    ) -> PyTree: ...


class Footprint(NamedTuple):
    """What a learner keeps."""

    parameters: int
    """Numbers in the networks that answer, for all tasks."""
    stored_examples: int = 0
    """Training examples kept."""


@runtime_checkable
class Learner(Protocol):
    """A frozen dataclass that is its own configuration, with pure functions."""

    recipes: ClassVar[dict[str, dict[str, dict[str, Any]]]]
    """Settings by recipe and family of benchmarks: `recipes["fast"]["split"]`."""
    needs_task_id: ClassVar[bool]
    """Whether it needs to know the task when it is tested, even where all tasks share their classes."""
    joint: ClassVar[bool]
    """Whether it sees all data so far at every stage: `vcl.benchmarks.joint` of the stream."""

    def init(self, key: Key[Array, ""], spec: StreamSpec) -> State:
        """What is known before any data. Shapes are a function of `spec` alone."""

    def grow(self, key: Key[Array, ""], state: State, old: StreamSpec, new: StreamSpec) -> State:
        """The state of `old` with the shapes of `new`; `key` is the one that `init` had.

        What was learnt stays as it is; what is new begins as it would have under `init`. So growing task by task
        gives the same as allocating all tasks at once.
        """

    def observe(self, key: Key[Array, ""], state: State, task: Task, data: Any, fit: Fit) -> State:
        """Learn from `data`, a `vcl.training.Data` of the spec's capacity."""

    def readout(self, key: Key[Array, ""], state: State, task: Task, fit: Fit) -> Params:
        """What predicts for `task`. It may refine a throw-away copy; the state stays as it is."""

    def predict(self, key: Key[Array, ""], params: Params, inputs: Shaped[Array, "n d"]) -> Float[Array, "s n c"]:
        """Log probabilities of the classes under each of s draws from what is believed (s = 1 for a point)."""

    def footprint(self, state: State) -> Footprint:
        """How large the networks are, and how many examples are kept."""


def check_index(what: str, index: Any, length: int) -> None:
    """Refuse an index that does not exist: compiled programs would take the nearest one that does.

    Only a plain number can be checked; inside a compiled program it was checked before.
    """
    if isinstance(index, int) and not 0 <= index < length:
        raise VclError(f"There is no {what} {index + 1}: there {'is' if length == 1 else 'are'} {length}.")


def check_growth(old: StreamSpec, new: StreamSpec) -> None:
    """Refuse a spec that is not `old` with more tasks, classes or examples."""
    if (old.input_shape, old.input_dtype) != (new.input_shape, new.input_dtype):
        raise VclError(
            f"A network for inputs of shape {old.input_shape} ({old.input_dtype}) cannot learn inputs of shape "
            f"{new.input_shape} ({new.input_dtype}). Start a new one."
        )
    if new.heads[: old.num_tasks] != old.heads or new.num_classes < old.num_classes or new.capacity < old.capacity:
        raise VclError("A state can only grow: tasks, classes and capacity may be added, not taken away or changed.")


def doubled(old: int, needed: int) -> int:
    """At least `needed`; twice the old one if that is too small."""
    return old if old >= needed else max(needed, 2 * old)


def overlay(old: PyTree, new: PyTree) -> PyTree:
    """`new` with the arrays of `old` in the leading corner of its own."""

    def place(a: Array, b: Array) -> Array:
        return a if a.shape == b.shape else b.at[tuple(slice(n) for n in a.shape)].set(a)

    return jax.tree.map(place, old, new)


def size(tree: PyTree) -> int:
    """How many numbers a tree of arrays holds."""
    return sum(leaf.size for leaf in jax.tree.leaves(tree))


def check_examples(examples: Examples, num_classes: int, what: str) -> None:
    """Refuse examples that would train quietly into nonsense."""
    inputs, labels = examples.inputs, examples.labels
    if inputs.ndim != 2 or labels.ndim != 1 or len(inputs) != len(labels):
        raise VclError(
            f"{what}: inputs have shape {inputs.shape} and labels {labels.shape}, but inputs must be "
            "(examples, features) and labels (examples,), of the same length. Reshape images to rows."
        )
    if len(inputs) == 0:
        raise VclError(f"{what} has no examples. Every task needs at least one.")
    check_inputs(inputs, what)
    if not np.issubdtype(labels.dtype, np.integer):
        raise VclError(f"{what}: labels are {labels.dtype}, but must be whole numbers from 0.")
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= num_classes:
        raise VclError(
            f"{what}: labels run from {low} to {high}, but this stream has {num_classes} classes, so they must be "
            f"between 0 and {num_classes - 1}. Renumber the labels or state more classes."
        )


def check_inputs(inputs: np.ndarray, what: str) -> None:
    """Refuse inputs that are neither uint8 nor finite floats."""
    if inputs.dtype == np.uint8:
        return
    if not np.issubdtype(inputs.dtype, np.floating):
        raise VclError(f"{what}: inputs are {inputs.dtype}, but must be uint8 pixels or floating-point numbers.")
    with np.errstate(over="ignore"):
        finite = np.isfinite(inputs.astype(np.float32))
    bad = np.flatnonzero(~finite.all(axis=tuple(range(1, inputs.ndim))))
    if len(bad):
        raise VclError(
            f"{what}: {len(bad)} of {len(inputs)} inputs contain NaN, infinity or numbers too large for "
            f"float32 (the first is number {bad[0]}). Remove or fill them."
        )
