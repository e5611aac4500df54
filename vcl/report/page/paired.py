"""Runs beside others of the same stream and seed: intransigence, and paired differences over seeds."""

from collections.abc import Mapping, Sequence
from statistics import mean
from typing import NamedTuple

from vcl.evaluation import intransigence
from vcl.report.groups import results_by_configuration, stream, together
from vcl.report.labels import labels
from vcl.runs.comparison import DIFFERENCES, MEASURES, Row, cell, difference, difference_cell, measure
from vcl.runs.results import Result

HEAD = ["configuration", "seeds", *(MEASURES[name][0].removesuffix(" (%)") for name in DIFFERENCES)]


class Configuration(NamedTuple):
    """What was run, and its result for each seed."""

    label: str
    by_seed: Mapping[int, Result]

    @property
    def accuracy(self) -> float:
        return mean(result["average_accuracy"] for result in self.by_seed.values())

    def shared(self, other: "Configuration") -> list[int]:
        """The seeds that both have."""
        return sorted(self.by_seed.keys() & other.by_seed.keys())

    def row(self, seeds: Sequence[int]) -> Row:
        """What is compared, on some seeds in their order."""
        results = [self.by_seed[seed] for seed in seeds]
        return Row(self.label, {name: [measure(r, name) for r in results] for name in DIFFERENCES}, [], [])


def intransigences(results: Sequence[Result]) -> list[float | None]:
    """Of each run, against the first one of joint training with its stream and seed; None where there is none."""
    joint = [result for result in results if result["method"] == "joint"]
    found = []
    for result in results:
        same = (j for j in joint if stream(j) == stream(result) and j["seed"] == result["seed"])
        reference = next(same, None)
        matrix = result["accuracy_matrix"]
        found.append(None if reference is None else intransigence(matrix, reference["accuracy_matrix"]))
    return found


def differences(results: Sequence[Result]) -> list[list[list[str]]]:
    """For each stream the rows of a table: the best configuration, then each other one against it.

    A configuration needs two seeds that another one has too. A stream without such a pair has no table.
    """
    groups = results_by_configuration(results)
    names = labels([group[0] for group in groups], over_seeds=True)
    found = [
        Configuration(name, {result["seed"]: result for result in group})
        for name, group in zip(names, groups, strict=True)
    ]
    on_streams = together(found, lambda one: stream(next(iter(one.by_seed.values()))))
    return [rows for one_stream in on_streams if (rows := _rows(one_stream))]


def _rows(configurations: Sequence[Configuration]) -> list[list[str]]:
    paired = [a for a in configurations if any(a is not b and len(a.shared(b)) > 1 for b in configurations)]
    if not paired:
        return []
    best, *others = sorted(paired, key=lambda one: one.accuracy, reverse=True)
    own = best.row(sorted(best.by_seed))
    rows = [
        [f"{best.label}: mean ± standard deviation", str(len(best.by_seed)), *(cell(own, n) for n in DIFFERENCES)]
    ]
    for other in others:
        if len(seeds := other.shared(best)) > 1:
            ours, theirs = other.row(seeds), best.row(seeds)
            gaps = [difference_cell(name, difference(ours, theirs, name)) for name in DIFFERENCES]
            rows.append([f"{other.label}: difference", str(len(seeds)), *gaps])
    return rows
