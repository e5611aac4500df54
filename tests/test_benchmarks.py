"""Streams: which examples come when, as which labels, for which head; all of it decided by the seed."""

import numpy as np
import pytest
from conftest import blobs, make_stream

from vcl.benchmarks import STREAMS, StreamOptions, build, hold_out, limited, online
from vcl.benchmarks.streams import from_arrays, permutation
from vcl.data import DATASETS, Dataset, load
from vcl.errors import VclError

VARIANTS = [
    ("split-digits", StreamOptions()),
    ("split-digits", StreamOptions(scenario="domain")),
    ("split-digits", StreamOptions(scenario="class", num_tasks=3)),
    ("permuted-digits", StreamOptions()),
    ("permuted-digits", StreamOptions(scenario="task", num_tasks=3, permute_first=True)),
    ("split-digits", StreamOptions(online=100)),
    ("permuted-digits", StreamOptions(num_tasks=2, online=600)),
    ("split-digits", StreamOptions(validation=0.1)),
    ("split-digits", StreamOptions(validation=0.2, online=50)),
]
every_variant = pytest.mark.parametrize(("name", "options"), VARIANTS)


@pytest.fixture(scope="session")
def digits() -> Dataset:
    return load("digits")


def rows(examples) -> list[tuple[bytes, int]]:
    """Examples as a bag: the same whatever their order."""
    return sorted((x.tobytes(), int(y)) for x, y in zip(*examples[:2], strict=True))


def all_examples(stream):
    return [*map(stream.train, range(len(stream.stages))), *map(stream.test, range(stream.spec.num_tasks))]


def same(first, second) -> bool:
    pairs = zip(all_examples(first), all_examples(second), strict=True)
    return all(np.array_equal(a, b) for one, other in pairs for a, b in zip(one, other, strict=True))


# What holds for every stream


@every_variant
def test_a_stream_keeps_to_its_specification(name, options):
    stream = build(name, options, seed=1)
    spec = stream.spec
    for examples in all_examples(stream):
        assert examples.inputs.shape == (len(examples.labels), spec.input_size)
        assert examples.inputs.dtype == spec.input_dtype == "uint8"
        assert 0 <= examples.labels.min() <= examples.labels.max() < spec.num_classes
    assert max(len(stream.train(s).labels) for s in range(len(stream.stages))) == spec.capacity
    assert len(stream.task_names) == spec.num_tasks == len(set(stream.stages))
    assert list(stream.stages) == sorted(stream.stages)


@every_variant
def test_a_stream_is_a_pure_function_of_the_seed(name, options):
    stream = build(name, options, seed=1)
    assert same(stream, build(name, options, seed=1))
    draws_at_random = name == "permuted-digits" or options.online or options.validation
    assert same(stream, build(name, options, seed=2)) == (not draws_at_random)


# Split


@pytest.mark.parametrize(
    ("scenario", "heads", "classes"),
    [("task", (0, 1, 2, 3, 4), 2), ("domain", (0,) * 5, 2), ("class", (0,) * 5, 10), (None, (0, 1, 2, 3, 4), 2)],
)
def test_scenarios_decide_the_heads(scenario, heads, classes):
    spec = build("split-digits", StreamOptions(scenario=scenario), seed=0).spec
    assert (spec.heads, spec.num_classes) == (heads, classes)


@pytest.mark.parametrize("scenario", ["task", "domain", "class"])
def test_split_gives_each_task_all_images_of_two_classes(scenario, digits):
    stream = build("split-digits", StreamOptions(scenario=scenario), seed=0)
    for task in range(5):
        for examples, images, numerals in (
            (stream.train(task), digits.train_images, digits.train_labels),
            (stream.test(task), digits.test_images, digits.test_labels),
        ):
            chosen = np.isin(numerals, [2 * task, 2 * task + 1])
            named = numerals[chosen] if scenario == "class" else numerals[chosen] == 2 * task + 1
            assert rows(examples) == rows((images[chosen], named))


def test_fewer_tasks_are_the_first_ones():
    few, all_five = (build("split-digits", StreamOptions(num_tasks=n), seed=0) for n in (2, 5))
    assert few.task_names == all_five.task_names[:2] == ("0v1", "2v3")
    assert rows(few.train(1)) == rows(all_five.train(1))


# Permuted


@pytest.mark.parametrize("num_tasks", [1, 10, 23])
def test_permuted_has_as_many_tasks_as_asked_each_with_its_own_permutation(num_tasks):
    stream = build("permuted-digits", StreamOptions(num_tasks=num_tasks), seed=3)
    seen = {stream.test(task).inputs.tobytes() for task in range(num_tasks)}
    assert len(seen) == num_tasks == stream.spec.num_tasks
    assert stream.spec.heads == (0,) * num_tasks


def test_a_task_moves_the_pixels_of_all_images_alike_and_keeps_the_labels(digits):
    stream = build("permuted-digits", StreamOptions(num_tasks=3), seed=3)
    order = permutation(3, 2, 64)
    assert sorted(order) == list(range(64))
    np.testing.assert_array_equal(stream.train(2).inputs, digits.train_images[:, order])
    np.testing.assert_array_equal(stream.test(2).inputs, digits.test_images[:, order])
    np.testing.assert_array_equal(stream.train(2).labels, digits.train_labels)


def test_the_first_task_is_in_order_unless_asked_otherwise(digits):
    plain, permuted = (build("permuted-digits", StreamOptions(permute_first=p), seed=0) for p in (False, True))
    np.testing.assert_array_equal(plain.train(0).inputs, digits.train_images)
    np.testing.assert_array_equal(permuted.train(0).inputs, digits.train_images[:, permutation(0, 0, 64)])
    assert not np.array_equal(permutation(0, 0, 64), np.arange(64))
    np.testing.assert_array_equal(plain.train(1).inputs, permuted.train(1).inputs)


def test_permutations_do_not_depend_on_how_many_tasks_there_are():
    few, many = (build("permuted-digits", StreamOptions(num_tasks=n), seed=0) for n in (2, 20))
    np.testing.assert_array_equal(few.train(1).inputs, many.train(1).inputs)


# Fewer examples, online and validation


def pairs(examples):
    return {(x.tobytes(), int(y)) for x, y in zip(examples.inputs, examples.labels, strict=True)}


def test_a_limited_stream_has_a_random_part_of_each_task_and_all_test_data():
    whole = build("permuted-digits", StreamOptions(num_tasks=2), seed=0)
    few, same, other = (
        build("permuted-digits", StreamOptions(num_tasks=2, examples=30), seed) for seed in (0, 0, 1)
    )
    assert few.spec.capacity == 30
    for task in range(2):
        train = few.train(task)
        assert pairs(train) <= pairs(whole.train(task))
        assert len(train.labels) == 30
        np.testing.assert_array_equal(train.inputs, same.train(task).inputs)
        np.testing.assert_array_equal(few.test(task).inputs, whole.test(task).inputs)
    assert not np.array_equal(few.train(0).labels, few.train(1).labels)
    assert not np.array_equal(few.train(0).labels, other.train(0).labels)


def test_a_limit_leaves_held_out_data_whole_and_is_cut_into_batches():
    options = StreamOptions(num_tasks=2, examples=30, online=20, validation=0.5)
    stream = build("split-digits", options, seed=0)
    assert [len(stream.train(stage).labels) for stage in range(4)] == [20, 10, 20, 10]
    whole = build("split-digits", StreamOptions(num_tasks=2, validation=0.5), seed=0)
    np.testing.assert_array_equal(stream.test(1).inputs, whole.test(1).inputs)


def test_a_limit_beyond_the_data_changes_nothing():
    whole, limit = (build("split-digits", StreamOptions(examples=n), seed=0) for n in (0, 10**6))
    np.testing.assert_array_equal(whole.train(3).inputs, limit.train(3).inputs)
    assert whole.spec == limit.spec


@pytest.mark.parametrize("size", [1, 50, 100, 10_000])
def test_online_cuts_each_task_into_batches_without_loss(size):
    whole = build("split-digits", StreamOptions(num_tasks=2), seed=0)
    cut = online(whole, size, seed=0)
    for task in range(2):
        stages = [s for s, t in enumerate(cut.stages) if t == task]
        batches = [cut.train(s) for s in stages]
        sizes = [len(b.labels) for b in batches]
        assert all(n == size for n in sizes[:-1])
        assert 0 < sizes[-1] <= size
        assert sorted(row for b in batches for row in rows(b)) == rows(whole.train(task))
        assert [cut.ends_task(s) for s in stages] == [False] * (len(stages) - 1) + [True]
        assert rows(cut.test(task)) == rows(whole.test(task))


def test_online_batches_are_mixed():
    first = build("split-digits", StreamOptions(scenario="class", online=60), seed=0).train(0)
    assert set(first.labels) == {0, 1}


def test_validation_is_carved_from_the_training_data():
    stream = make_stream()
    carved = hold_out(stream, 0.25, seed=0)
    for task, size in enumerate((60, 47, 55)):
        train, held = rows(carved.train(task)), rows(carved.test(task))
        assert len(held) == size // 4
        assert sorted(train + held) == rows(stream.train(task))


def test_validation_is_held_out_before_batches_are_cut():
    options = StreamOptions(num_tasks=2, validation=0.2, online=50)
    stream = build("split-digits", options, seed=0)
    held = set(rows(stream.test(0)))
    assert len(held) > 20
    assert not held & {row for s, t in enumerate(stream.stages) if t == 0 for row in rows(stream.train(s))}
    with pytest.raises(VclError, match="Hold out before"):
        hold_out(stream, 0.2, seed=0)


# Streams of one's own


def test_arrays_become_a_stream_as_they_are():
    inputs, labels = blobs(0, 12)
    images = np.arange(2 * 3 * 4, dtype=np.uint8).reshape(2, 3, 4)
    stream = from_arrays([(inputs, labels, inputs[:5], labels[:5])] * 3, name="mine", task_names=["a", "b", "c"])
    np.testing.assert_array_equal(stream.train(2).inputs, inputs)
    np.testing.assert_array_equal(stream.test(1).labels, labels[:5])
    assert (stream.name, stream.task_names, stream.spec.heads) == ("mine", ("a", "b", "c"), (0, 1, 2))
    pictures = from_arrays([(images, np.array([0, 2]), images, np.array([1, 0]))], shared_head=True)
    assert (pictures.spec.input_shape, pictures.spec.input_dtype) == ((3, 4), "uint8")
    assert (pictures.spec.num_classes, pictures.spec.capacity) == (3, 2)
    np.testing.assert_array_equal(pictures.train(0).inputs, images.reshape(2, 12))


def test_pixels_beside_floats_are_scaled_like_pixels():
    inputs, labels = blobs(0, 4)
    pixels = np.full((4, 6), 51, np.uint8)
    stream = from_arrays([(inputs, labels, inputs, labels), (pixels, labels, pixels, labels)])
    assert stream.spec.input_dtype == stream.train(1).inputs.dtype == stream.train(0).inputs.dtype == "float32"
    np.testing.assert_allclose(stream.test(1).inputs, 0.2, rtol=1e-6)


GOOD = (np.zeros((4, 6), np.float32), np.array([0, 1, 0, 1]))


def with_value(value: float) -> np.ndarray:
    inputs = np.zeros((4, 6))
    inputs[2, 3] = value
    return inputs


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ((with_value(np.nan), GOOD[1], *GOOD), r"Task 2's training data: 1 of 4 .*NaN.*number 2"),
        ((*GOOD, with_value(-np.inf), GOOD[1]), "Task 2's test data: 1 of 4"),
        ((with_value(1e300), GOOD[1], *GOOD), "too large"),
        ((np.zeros((4, 5)), GOOD[1], *GOOD), r"shape \(5,\).*first task's have \(6,\)"),
        ((np.zeros(4), GOOD[1], *GOOD), r"shape \(4,\).*\(examples, features"),
        ((GOOD[0], GOOD[1][:3], *GOOD), r"\(4, 6\) and labels \(3,\).*same length"),
        ((GOOD[0], GOOD[1][:, None], *GOOD), r"labels \(4, 1\)"),
        ((GOOD[0].astype(int), GOOD[1], *GOOD), "int64, but must be uint8"),
        ((GOOD[0], np.array([0, 1, 2, 1]), *GOOD), "0 to 2, but this stream has 2 classes"),
        ((GOOD[0], np.array([0, -1, 0, 1]), *GOOD), "labels run from -1"),
        ((GOOD[0], np.array([0.0, np.nan, 0.0, 1.0]), *GOOD), "labels are float64"),
        ((GOOD[0], np.array(["a", "b", "a", "b"]), *GOOD), "must be whole numbers"),
        ((GOOD[0][:0], GOOD[1][:0], *GOOD), "Task 2's training data has no examples"),
        (GOOD, "Task 2 has 2 arrays, but every task needs four"),
    ],
)
def test_arrays_that_would_train_into_nonsense_are_refused(task, message):
    with pytest.raises(VclError, match=message):
        from_arrays([(*GOOD, *GOOD), task], num_classes=2)


@pytest.mark.parametrize("labels", [np.array([0.5, 1.0, 0.0, np.nan]), np.array(["a", "b", "a", "b"])])
def test_labels_that_cannot_be_counted_are_refused(labels):
    with pytest.raises(VclError, match="must be whole numbers from 0"):
        from_arrays([(GOOD[0], labels, GOOD[0], labels)])


def test_a_stream_needs_tasks_and_a_name_for_each():
    with pytest.raises(VclError, match="at least one task"):
        from_arrays([])
    with pytest.raises(VclError, match="2 tasks, but 1 names"):
        from_arrays([(*GOOD, *GOOD)] * 2, task_names=["only"])


# Options that cannot be meant


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("split-digit", StreamOptions(), "Did you mean 'split-digits'"),
        ("split-digits", StreamOptions(num_tasks=0), "at least 1, but it is 0"),
        ("split-digits", StreamOptions(num_tasks=6), "at most 5 tasks"),
        ("split-digits", StreamOptions(online=-1), "--online.*-1"),
        ("split-digits", StreamOptions(examples=-1), "--examples.*-1"),
        ("split-digits", StreamOptions(validation=1.0), "between 0 and 1"),
        ("split-digits", StreamOptions(validation=float("nan")), "between 0 and 1"),
        ("split-digits", StreamOptions(permute_first=True), "permutes nothing"),
        ("permuted-digits", StreamOptions(scenario="class"), "no class scenario"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(name, options, message):
    with pytest.raises(VclError, match=message):
        build(name, options, seed=0)


def test_transformations_refuse_what_they_cannot_do():
    single = from_arrays([(GOOD[0][:1], GOOD[1][:1], *GOOD)])
    with pytest.raises(VclError, match="single training example"):
        hold_out(single, 0.5, seed=0).train(0)
    for fraction in (0.0, 1.5):
        with pytest.raises(VclError, match="between 0 and 1"):
            hold_out(make_stream(), fraction, seed=0)
    with pytest.raises(VclError, match="At least one example"):
        online(make_stream(), 0, seed=0)
    with pytest.raises(VclError, match="at least one training example"):
        limited(make_stream(), 0, seed=0)
    with pytest.raises(VclError, match="before a task's data is cut"):
        limited(online(make_stream(), 2, seed=0), 5, seed=0)


def test_every_benchmark_names_a_data_set_and_says_what_it_is():
    assert {"split-mnist", "permuted-mnist", "split-fashion", "split-cifar10"} <= STREAMS.keys()
    for name, benchmark in STREAMS.items():
        assert name.startswith(benchmark.family) or benchmark.family == "real"
        assert benchmark.dataset in DATASETS
        assert len(benchmark.summary) > 20
