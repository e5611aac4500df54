"""How tasks are made from a data set, and streams from other streams."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from vcl.core import Examples, Scenario, Stream, StreamSpec, check_examples
from vcl.data import Dataset, Tabular
from vcl.data.tables import split_rows, standardised
from vcl.errors import VclError


def split(name: str, data: Dataset, scenario: Scenario, num_tasks: int | None) -> Stream:
    """Classes two by two: {0,1}, {2,3}, …

    Scenarios (van de Ven & Tolias, 2019): `task` has a two-way head for each task, `domain` one two-way
    head that all share, `class` one head over all classes.
    """
    most = data.num_classes // 2
    num_tasks = num_tasks or most
    if num_tasks > most:
        raise VclError(
            f"{name} has {data.num_classes} classes, so at most {most} tasks, but --num-tasks is {num_tasks}."
        )
    train_rows = [np.flatnonzero(data.train_labels // 2 == t) for t in range(num_tasks)]
    test_rows = [np.flatnonzero(data.test_labels // 2 == t) for t in range(num_tasks)]

    def labels(values: np.ndarray) -> np.ndarray:
        return values if scenario == "class" else values % 2

    def train(stage: int) -> Examples:
        rows = train_rows[stage]
        return Examples(data.train_images[rows], labels(data.train_labels[rows]))

    def test(task: int) -> Examples:
        rows = test_rows[task]
        return Examples(data.test_images[rows], labels(data.test_labels[rows]))

    spec = StreamSpec(
        input_shape=data.shape,
        input_dtype="uint8",
        num_classes=data.num_classes if scenario == "class" else 2,
        heads=tuple(range(num_tasks)) if scenario == "task" else (0,) * num_tasks,
        capacity=max(len(rows) for rows in train_rows),
        scenario=scenario,
    )
    names = tuple(f"{2 * t}v{2 * t + 1}" for t in range(num_tasks))
    return Stream(name, spec, names, tuple(range(num_tasks)), train, test)


def permuted(name: str, data: Dataset, scenario: Scenario, num_tasks: int, permute_first: bool, seed: int) -> Stream:
    """Every task is the whole data set with its pixels in another order; the first is in order unless asked."""

    def shown(images: np.ndarray, task: int) -> np.ndarray:
        if task == 0 and not permute_first:
            return images
        return np.take(images, permutation(seed, task, images.shape[1]), axis=1)

    spec = StreamSpec(
        input_shape=data.shape,
        input_dtype="uint8",
        num_classes=data.num_classes,
        heads=tuple(range(num_tasks)) if scenario == "task" else (0,) * num_tasks,
        capacity=len(data.train_labels),
        scenario=scenario,
    )
    return Stream(
        name,
        spec,
        tuple(f"permutation {t + 1}" for t in range(num_tasks)),
        tuple(range(num_tasks)),
        lambda stage: Examples(shown(data.train_images, stage), data.train_labels),
        lambda task: Examples(shown(data.test_images, task), data.test_labels),
    )


def real(name: str, data: Tabular, scenario: Scenario, num_tasks: int | None) -> Stream:
    """Rows that belong to places or times, in their order; every fifth row of a task is a test row.

    Inputs are standardised by the first task's training rows: later ones are not known yet.
    """
    most = len(data.task_names)
    count = num_tasks or most
    if count > most:
        raise VclError(f"{name} has {most} tasks, but --num-tasks is {count}.")
    train_rows, test_rows = split_rows(data.tasks)
    inputs = standardised(data.inputs, train_rows[data.tasks[train_rows] == 0])
    by_task = [[rows[data.tasks[rows] == task] for task in range(count)] for rows in (train_rows, test_rows)]

    def examples(rows: np.ndarray) -> Examples:
        return Examples(inputs[rows], data.labels[rows])

    spec = StreamSpec(
        input_shape=inputs.shape[1:],
        input_dtype="float32",
        num_classes=data.num_classes,
        heads=tuple(range(count)) if scenario == "task" else (0,) * count,
        capacity=max(len(rows) for rows in by_task[0]),
        scenario=scenario,
    )
    return Stream(
        name,
        spec,
        data.task_names[:count],
        tuple(range(count)),
        lambda stage: examples(by_task[0][stage]),
        lambda task: examples(by_task[1][task]),
    )


def permutation(seed: int, task: int, size: int) -> np.ndarray:
    """Permutation of a task's pixels: a pure function of the seed and the task's number."""
    return np.random.default_rng([seed, task]).permutation(size)


def from_arrays(
    tasks: Sequence[Sequence[np.ndarray]],
    *,
    num_classes: int | None = None,
    shared_head: bool = False,
    name: str = "custom",
    task_names: Sequence[str] | None = None,
) -> Stream:
    """A stream of your own: for each task (train inputs, train labels, test inputs, test labels).

    Inputs are uint8 pixels, scaled to [0, 1] when read, or floats, used as they are; of shape (examples, …).
    Labels count from 0 within each task. With `shared_head` one output layer answers for all tasks.
    """
    if not tasks:
        raise VclError("A stream needs at least one task, but the list of tasks is empty.")
    if wrong := [number for number, arrays in enumerate(tasks, start=1) if len(arrays) != 4]:
        raise VclError(
            f"Task {wrong[0]} has {len(tasks[wrong[0] - 1])} arrays, but every task needs four: "
            "train inputs, train labels, test inputs, test labels."
        )
    shape = np.shape(tasks[0][0])[1:]
    labels = [np.asarray(part) for arrays in tasks for part in (arrays[1], arrays[3])]
    whole = [part for part in labels if part.size and np.issubdtype(part.dtype, np.integer)]
    classes = num_classes or 1 + max((int(part.max()) for part in whole), default=0)
    as_pixels = all(np.asarray(part).dtype == np.uint8 for arrays in tasks for part in (arrays[0], arrays[2]))
    parts: list[tuple[Examples, Examples]] = []
    for number, arrays in enumerate(tasks, start=1):
        train, test = (
            _examples(arrays[i], arrays[i + 1], shape, as_pixels, classes, f"Task {number}'s {what} data")
            for i, what in ((0, "training"), (2, "test"))
        )
        parts.append((train, test))
    spec = StreamSpec(
        input_shape=shape,
        input_dtype="uint8" if as_pixels else "float32",
        num_classes=classes,
        heads=(0,) * len(parts) if shared_head else tuple(range(len(parts))),
        capacity=max(len(train.labels) for train, _ in parts),
        scenario=scenario_of([train.labels for train, _ in parts]) if shared_head else "task",
    )
    names = tuple(task_names or (f"task {t + 1}" for t in range(len(parts))))
    if len(names) != len(parts):
        raise VclError(f"There are {len(parts)} tasks, but {len(names)} names for them.")
    return Stream(name, spec, names, tuple(range(len(parts))), lambda s: parts[s][0], lambda t: parts[t][1])


def scenario_of(labels: Sequence[np.ndarray]) -> Scenario:
    """Where tasks share a head, they share its classes, or each brings classes of its own."""
    classes = [set(np.unique(part)) for part in labels]
    apart = len(classes) > 1 and sum(map(len, classes)) == len(set().union(*classes))
    return "class" if apart else "domain"


def _examples(
    inputs: np.ndarray, labels: np.ndarray, shape: tuple[int, ...], as_pixels: bool, classes: int, what: str
) -> Examples:
    inputs, labels = np.asarray(inputs), np.asarray(labels)
    if inputs.ndim < 2:
        raise VclError(f"{what} has inputs of shape {inputs.shape}, but they must be (examples, features …).")
    if inputs.shape[1:] != shape:
        raise VclError(f"{what} has inputs of shape {inputs.shape[1:]}, but the first task's have {shape}.")
    flat = inputs.reshape(len(inputs), math.prod(shape))
    check_examples(Examples(flat, labels), classes, what)
    if not as_pixels:
        # Where only some arrays are pixels, these are scaled here: a learner sees one type all along.
        flat = flat.astype(np.float32) / np.float32(255 if flat.dtype == np.uint8 else 1)
    return Examples(flat, labels.astype(np.int32))


def hold_out(stream: Stream, fraction: float, seed: int) -> Stream:
    """Validation: test on a random part of the training data, train on the rest; the test data is not touched."""
    if not 0 < fraction < 1:
        raise VclError(f"The fraction to hold out must lie between 0 and 1, but it is {fraction}.")
    if stream.stages != tuple(range(stream.spec.num_tasks)):
        raise VclError("Hold out before a task's data is cut into batches: online(hold_out(stream, …), …).")

    def parts(task: int) -> tuple[Examples, Examples]:
        examples = stream.train(task)
        if len(examples.labels) < 2:
            raise VclError(f"Task {task + 1} has a single training example, so none can be held out of it.")
        order = np.random.default_rng([seed, task, 1]).permutation(len(examples.labels))
        held = held_out_size(len(order), fraction)
        return take(examples, np.sort(order[held:])), take(examples, np.sort(order[:held]))

    spec = replace(stream.spec, capacity=stream.spec.capacity - held_out_size(stream.spec.capacity, fraction))
    return replace(stream, spec=spec, train=lambda stage: parts(stage)[0], test=lambda task: parts(task)[1])


def held_out_size(examples: int, fraction: float) -> int:
    return min(max(1, int(examples * fraction)), examples - 1)


def limited(stream: Stream, examples: int, seed: int) -> Stream:
    """At most `examples` training examples of every task, drawn at random; the test data stay whole."""
    if examples < 1:
        raise VclError(f"A task needs at least one training example, but {examples} are asked for.")
    if stream.stages != tuple(range(stream.spec.num_tasks)):
        raise VclError("Limit the examples before a task's data is cut into batches: online(limited(stream, …), …).")

    def train(task: int) -> Examples:
        whole = stream.train(task)
        order = np.random.default_rng([seed, task, 3]).permutation(len(whole.labels))
        return take(whole, np.sort(order[:examples]))

    return replace(stream, spec=replace(stream.spec, capacity=min(examples, stream.spec.capacity)), train=train)


def online(stream: Stream, size: int, seed: int) -> Stream:
    """Every task's data cut into batches of `size` that arrive one after the other, in random order."""
    if size < 1:
        raise VclError(f"At least one example must arrive at a time, but the size of a batch is {size}.")
    counts = [len(stream.train(stage).labels) for stage in range(len(stream.stages))]
    arriving = [(stage, start) for stage, count in enumerate(counts) for start in range(0, count, size)]

    def train(stage: int) -> Examples:
        source, start = arriving[stage]
        order = np.random.default_rng([seed, source, 2]).permutation(counts[source])
        return take(stream.train(source), order[start : start + size])

    stages = tuple(stream.stages[source] for source, _ in arriving)
    return replace(stream, spec=replace(stream.spec, capacity=min(size, max(counts))), stages=stages, train=train)


def joint(stream: Stream) -> Stream:
    """Every stage brings all that came so far once more, each example with its head."""
    spec = stream.spec
    counts = [len(stream.train(stage).labels) for stage in range(len(stream.stages))]
    ends = np.cumsum(counts)

    def train(stage: int) -> Examples:
        # Filled part by part: of a long stream of permuted images there is room for one copy, not for two.
        inputs = np.empty((ends[stage], spec.input_size), spec.input_dtype)
        labels, groups = np.empty((2, ends[stage]), np.int32)
        for source, (end, count) in enumerate(zip(ends[: stage + 1], counts, strict=False)):
            part = stream.train(source)
            inputs[end - count : end] = part.inputs
            labels[end - count : end] = part.labels
            groups[end - count : end] = spec.heads[stream.stages[source]]
        return Examples(inputs, labels, groups)

    return replace(stream, spec=replace(spec, capacity=int(ends[-1])), train=train)


def take(examples: Examples, rows: np.ndarray) -> Examples:
    return Examples(examples.inputs[rows], examples.labels[rows])
