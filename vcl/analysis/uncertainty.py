"""Whether a stored run's uncertainty can be trusted: calibration, selective prediction, inputs from outside."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Bool, Float, Int, Shaped

from vcl import learning
from vcl.benchmarks import STREAMS, build
from vcl.core import Stream
from vcl.data import is_here
from vcl.errors import VclError
from vcl.evaluation import (
    Prediction,
    Reliability,
    area_under_risk,
    auroc,
    brier_score,
    expected_calibration_error,
    reliability,
    risk_curve,
)
from vcl.learning import Snapshot
from vcl.runs.stored import StoredRun

COVERAGES = (0.8, 0.9, 0.95)
CURVE = tuple(percent / 100 for percent in range(1, 101))
"""The coverages of the whole curve."""
DIGITS = 6
"""Of an epistemic entropy, in nats: what is beyond is rounding, and all that a point estimate has."""
PERCENT = ("accuracy", "calibration_error", "risk_at")
"""Measures that are shown in per cent."""
MOST = 2000
"""Most inputs of each kind and task."""
OTHER = {"split-mnist": "split-fashion", "permuted-mnist": "permuted-fashion"}
OTHER |= {theirs: ours for ours, theirs in OTHER.items()}
"""Benchmarks whose images are of the same size, but show other things."""


class Detection(NamedTuple):
    """Area under the ROC curve of telling inputs from outside by their entropy; mean over tasks."""

    total: float
    epistemic: float


class Report(NamedTuple):
    """Means over all tasks, after the last one."""

    accuracy: float
    negative_log_likelihood: float
    brier_score: float
    calibration_error: float
    risk: dict[float, float]
    """The part of wrong answers among the most certain ones, by the part that is answered."""
    risk_curve: Float[np.ndarray, "coverages"]
    """The same for each part of CURVE."""
    area_under_risk: float
    outside: dict[str, Detection]
    reliability: Reliability
    """Over the examples of all tasks."""


class Trust(NamedTuple):
    """What a report shows of a run's uncertainty."""

    answers: list[tuple[Float[np.ndarray, "_"], Bool[np.ndarray, "_"]]]
    """The confidence of the answers to each task's test data, and which are right."""
    outside: dict[str, Detection]
    absent: str | None
    """The data set of other things that is not on this machine, so that nothing is known of it."""


def uncertainty(run: StoredRun, data_dir: Path | None = None) -> Report:
    """Measure a complete run's uncertainty on its test data, and on inputs from outside.

    Inputs from outside are images of another data set where there is one of the same size, uniform noise, and a
    further permutation, or the classes of other tasks: all of them after the last task, and those of later tasks as
    long as they are unseen.

    Examples
    --------
    >>> import vcl
    >>> _ = vcl.run(config := vcl.configure("split-digits", epochs=2, stream=vcl.StreamOptions(num_tasks=2)))
    >>> report = uncertainty(vcl.StoredRun.open(f"runs/{config.name}"))
    >>> sorted(report.outside)
    ['noise', 'other_tasks', 'unseen']
    """
    _ = run.result
    stream, snapshot = run.stream(data_dir), run.snapshot()
    others = outsiders(run, stream, data_dir, OTHER.get(run.config.benchmark))
    found, labels = predictions(snapshot, stream)
    correct = [p.classes == y for p, y in zip(found, labels, strict=True)]
    doubts = [1.0 - p.probabilities.max(axis=1) for p in found]
    pairs = list(zip(doubts, correct, strict=True))
    return Report(
        accuracy=mean(float(np.mean(c)) for c in correct),
        negative_log_likelihood=-mean(
            float(np.mean(p.log_probs[np.arange(len(y)), y])) for p, y in zip(found, labels, strict=True)
        ),
        brier_score=mean(brier_score(p.probabilities, y) for p, y in zip(found, labels, strict=True)),
        calibration_error=mean(
            expected_calibration_error(p.probabilities, y) for p, y in zip(found, labels, strict=True)
        ),
        risk=dict(zip(COVERAGES, mean_risk(pairs, COVERAGES).tolist(), strict=True)),
        risk_curve=mean_risk(pairs, CURVE),
        area_under_risk=mean(area_under_risk(doubt, right) for doubt, right in pairs),
        outside=detection(snapshot, found, others) | unseen_classes(run, stream),
        reliability=reliability(np.concatenate([p.probabilities for p in found]), np.concatenate(labels)),
    )


def mean_risk(
    pairs: Sequence[tuple[Float[np.ndarray, "_"], Shaped[np.ndarray, "_"]]], coverages: Sequence[float]
) -> Float[np.ndarray, "_"]:
    """Risk at some coverages; mean over tasks, each with its doubts and whether they were right."""
    return np.mean([risk_curve(doubt, right, coverages) for doubt, right in pairs], axis=0)


def trust(run: StoredRun, data_dir: Path | None = None) -> Trust:
    """What a report shows of a run's uncertainty, after the last task; other data than the run's is not fetched."""
    stream, snapshot = run.stream(data_dir), run.snapshot()
    other = OTHER.get(run.config.benchmark)
    absent = STREAMS[other].dataset if other and not is_here(STREAMS[other].dataset, data_dir) else None
    others = outsiders(run, stream, data_dir, None if absent else other)
    found, labels = predictions(snapshot, stream)
    return Trust(
        answers=[(p.probabilities.max(axis=1), p.classes == y) for p, y in zip(found, labels, strict=True)],
        outside=detection(snapshot, found, others) | unseen_classes(run, stream),
        absent=absent,
    )


def predictions(snapshot: Snapshot, stream: Stream) -> tuple[list[Prediction], list[Int[np.ndarray, "_"]]]:
    """Of each task's test data; and the labels."""
    found, labels = [], []
    for number in range(stream.spec.num_tasks):
        examples = stream.test(number)
        found.append(learning.predict(snapshot, stream.spec.task(number), examples.inputs))
        labels.append(examples.labels)
    return found, labels


def detection(
    snapshot: Snapshot, inside: Sequence[Prediction], others: Mapping[str, Sequence[Shaped[np.ndarray, "_ d"]]]
) -> dict[str, Detection]:
    """How well entropies tell each kind of inputs from outside from the test data; mean over tasks."""
    return {
        name: average(
            detected(snapshot, number, prediction, inputs)
            for number, (prediction, inputs) in enumerate(zip(inside, by_task, strict=True))
        )
        for name, by_task in others.items()
    }


def unseen_classes(run: StoredRun, stream: Stream) -> dict[str, Detection]:
    """How well entropies tell classes of later tasks from a task's own, just after it is learnt; mean over tasks.

    Only where every task has classes and a head of its own, and from the states that the run still has.
    """
    if not has_classes_of_its_own(run, stream):
        return {}
    stages, found = run.record["stages"], []
    for stage in run.folder.stages():
        number = stages[stage - 1]
        if number in stages[stage:] or number == stream.spec.num_tasks - 1:
            continue
        snapshot = run.snapshot(stage)
        inside = learning.predict(snapshot, snapshot.spec.task(number), stream.test(number).inputs)
        later = some_of(stream, range(number + 1, stream.spec.num_tasks), number)
        found.append(detected(snapshot, number, inside, later))
    return {"unseen": average(found)} if found else {}


def detected(snapshot: Snapshot, number: int, inside: Prediction, outside: Shaped[np.ndarray, "_ d"]) -> Detection:
    """How well the entropies of one task's answers tell its test data from inputs from outside."""
    answers = learning.predict(snapshot, snapshot.spec.task(number), outside)
    return Detection(*(auroc(a, b) for a, b in entropies(inside, answers)))


def average(found: Iterable[Detection]) -> Detection:
    return Detection(*np.mean(list(found), axis=0).tolist())


def has_classes_of_its_own(run: StoredRun, stream: Stream) -> bool:
    """Whether each task of a run brings classes that the others do not have, and outputs for them."""
    return STREAMS[run.config.benchmark].family != "permuted" and stream.spec.num_heads > 1


def some_of(stream: Stream, tasks: Iterable[int], seed: int) -> Shaped[np.ndarray, "_ d"]:
    """Test inputs of several tasks, in random order."""
    inputs = np.concatenate([stream.test(task).inputs for task in tasks])
    return np.random.default_rng(seed).permutation(inputs)[:MOST]


def entropies(
    inside: Prediction, outside: Prediction
) -> Sequence[tuple[Float[np.ndarray, "n"], Float[np.ndarray, "m"]]]:
    """Total and epistemic, of both."""
    return [
        (inside.total_entropy, outside.total_entropy),
        (inside.epistemic_entropy.round(DIGITS), outside.epistemic_entropy.round(DIGITS)),
    ]


def outsiders(
    run: StoredRun, stream: Stream, data_dir: Path | None, other: str | None
) -> dict[str, list[Shaped[np.ndarray, "_ d"]]]:
    """Inputs that are none of a task's own, by kind, for each task; `other` is a benchmark like OTHER's."""
    tasks = range(stream.spec.num_tasks)
    kinds = {"noise": [noise(stream, run.config.seed, t) for t in tasks]}
    options = run.config.stream
    if other is not None:
        shown = build(other, options, run.config.seed, data_dir)
        # Copied, since a part of an array holds the whole in memory.
        kinds[STREAMS[other].dataset] = [shown.test(t).inputs[:MOST].copy() for t in tasks]
    if STREAMS[run.config.benchmark].family == "permuted":
        further = build(run.config.benchmark, replace(options, num_tasks=len(tasks) + 1), run.config.seed, data_dir)
        kinds["unseen"] = [further.test(len(tasks)).inputs[:MOST]] * len(tasks)
    elif has_classes_of_its_own(run, stream):
        kinds["other_tasks"] = [some_of(stream, [t for t in tasks if t != this], this) for this in tasks]
    return kinds


def described(kind: str, benchmark: str) -> str:
    """Inputs of a kind from outside, in words.

    >>> described("unseen", "split-mnist"), described("fashion-mnist", "split-mnist"), described("noise", "elec2")
    ('classes not yet seen', 'images of fashion-mnist', 'uniform noise')
    """
    permuted = STREAMS[benchmark].family == "permuted"
    named = {
        "unseen": "a further permutation" if permuted else "classes not yet seen",
        "other_tasks": "classes of the other tasks",
        "noise": "uniform noise",
    }
    return named.get(kind, f"images of {kind}")


def noise(stream: Stream, seed: int, task: int) -> Shaped[np.ndarray, "n d"]:
    """Every pixel uniform between the smallest and the largest there is."""
    inputs = stream.test(task).inputs
    key = jax.random.fold_in(jax.random.key(seed), task)
    drawn = np.asarray(jax.random.uniform(key, (min(MOST, len(inputs)), inputs.shape[1])))
    low, high = float(inputs.min()), float(inputs.max())
    return (low + (high - low) * drawn).astype(inputs.dtype)


def averaged(reports: Sequence[Report]) -> dict[str, tuple[float, float]]:
    """Mean and standard deviation over runs, which must have the same inputs from outside."""
    if not reports:
        raise VclError("There are no runs to average.")
    columns = [flat(report) for report in reports]
    if any(column.keys() != columns[0].keys() for column in columns):
        raise VclError("These runs are of different benchmarks. Give runs of one benchmark.")
    return {
        name: (float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else 0.0)
        for name in columns[0]
        for values in [[column[name] for column in columns]]
    }


def as_json(reports: Sequence[Report]) -> dict[str, Any]:
    """All there is of some runs that differ in their seeds: means, standard deviations and every run's own value."""
    values = [flat(report) for report in reports]
    curves = np.array([report.risk_curve for report in reports])
    diagram = pooled([report.reliability for report in reports])
    return {
        "runs": len(reports),
        **{
            name: {"mean": m, "standard_deviation": s, "values": [one[name] for one in values]}
            for name, (m, s) in averaged(reports).items()
        },
        "reliability": {name: array.tolist() for name, array in diagram._asdict().items()},
        "risk_coverage": {"coverage": list(CURVE), "risk": curves.mean(axis=0).tolist()},
    }


def as_markdown(found: Mapping[str, Sequence[Report]]) -> str:
    """A table for a document: a line for each method, mean ± standard deviation over its runs.

    Accuracy, calibration error and risk in per cent; AUROC by total and by epistemic entropy.
    """
    first = next(iter(found.values()))[0]
    titles = {
        "accuracy": "accuracy (%)",
        "brier_score": "Brier score",
        "calibration_error": "calibration error (%)",
        "risk_at_90": "error rate at 90 % coverage (%)",
    }
    for kind in first.outside:
        titles |= {f"auroc_{kind}_{part}": f"{kind.replace('_', ' ')}, {part}" for part in Detection._fields}
    lines = [["method", "runs", *titles.values()], ["---", *["---:"] * (len(titles) + 1)]]
    for name, reports in found.items():
        cells = []
        for measure, (average, spread) in averaged(reports).items():
            if measure in titles:
                factor, digits = (100.0, 2) if measure.startswith(PERCENT) else (1.0, 4)
                several = f" ± {factor * spread:.{digits}f}" if len(reports) > 1 else ""
                cells.append(f"{factor * average:.{digits}f}{several}")
        lines.append([name, str(len(reports)), *cells])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def pooled(diagrams: Sequence[Reliability]) -> Reliability:
    """One reliability diagram of the examples of several."""
    counts = np.array([diagram.counts for diagram in diagrams])
    total = counts.sum(axis=0)
    confidence, accuracy = (
        np.sum(counts * np.array(values), axis=0) / np.maximum(total, 1)
        for values in ([d.confidence for d in diagrams], [d.accuracy for d in diagrams])
    )
    return Reliability(total, confidence, accuracy)


def flat(report: Report) -> dict[str, float]:
    """All single numbers of a report, by name."""
    numbers = {
        "accuracy": report.accuracy,
        "negative_log_likelihood": report.negative_log_likelihood,
        "brier_score": report.brier_score,
        "calibration_error": report.calibration_error,
        **{f"risk_at_{round(100 * c)}": r for c, r in report.risk.items()},
        "area_under_risk": report.area_under_risk,
    }
    for name, found in report.outside.items():
        numbers |= {f"auroc_{name}_total": found.total, f"auroc_{name}_epistemic": found.epistemic}
    return numbers
