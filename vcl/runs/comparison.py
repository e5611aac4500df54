"""Methods side by side: a table of their runs' results."""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass, fields
from statistics import mean, stdev
from types import NoneType, UnionType
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from vcl.core import StreamSpec
from vcl.errors import VclError, choose
from vcl.evaluation import intransigence, learning_accuracy
from vcl.methods import METHODS
from vcl.nets import Network
from vcl.runs.results import Result

MEASURES = {
    "average_accuracy": ("accuracy (%)", 100.0, 2),
    "forgetting": ("forgetting", 100.0, 2),
    "backward_transfer": ("backward transfer", 100.0, 2),
    "forward_transfer": ("forward transfer", 100.0, 2),
    "learning_accuracy": ("learning accuracy (%)", 100.0, 2),
    "intransigence": ("intransigence", 100.0, 2),
    "calibration_error": ("calibration error", 100.0, 2),
    "brier_score": ("Brier score", 1.0, 4),
    "negative_log_likelihood": ("negative log-likelihood", 1.0, 3),
    "parameters": ("parameters", 1.0, 0),
    "stored_examples": ("stored examples", 1.0, 0),
    "state_bytes": ("state (MB)", 1e-6, 2),
    "steps": ("steps", 1.0, 0),
    "train_seconds": ("training (s)", 1.0, 0),
    "cpu_seconds": ("CPU (s)", 1.0, 0),
}
"""What is measured: title, factor to the unit shown (100: percentage points), digits."""
SHOWN = ("average_accuracy", "forgetting", "learning_accuracy", "calibration_error", "train_seconds")
"""The measures of the table in the terminal, which must fit; files have all."""
DIFFERENCES = ("average_accuracy", "calibration_error", "brier_score", "negative_log_likelihood")
"""The measures whose paired differences are tabulated."""
CERTAIN = {"parameters", "stored_examples", "state_bytes", "steps"}
"""Measures that do not depend on the seed, so that they have no standard deviation."""


@dataclass(frozen=True)
class Entry:
    """A method as the user names it: `vcl`, or `vcl:coreset=200` with settings of its own."""

    label: str
    method: str
    settings: dict[str, Any]
    recipe: str | None = None


def entries(asked: str) -> list[Entry]:
    """Names with commas between; `all` stands for every method with its recipe."""
    parts = [part.strip() for part in asked.split(",") if part.strip()]
    names = [name for part in parts for name in (METHODS if part == "all" else [part])]
    if not names:
        raise VclError(
            "--methods names no method. Give names with commas between, or all; `vcl methods` lists them."
        )
    if twice := [name for name in names if names.count(name) > 1]:
        raise VclError(f"--methods names {twice[0]} twice. Name each once.")
    return [entry(name) for name in names]


def entry(label: str) -> Entry:
    """`method:setting=value:…`"""
    method, *changes = label.split(":")
    kind = METHODS[choose("method", method, METHODS)]
    settings = {}
    for change in changes:
        name, equals, value = change.partition("=")
        if not equals:
            raise VclError(f"{label!r} should read method:setting=value, such as vcl:coreset=200.")
        settings[name] = value
    recipe = settings.pop("recipe", None)
    return Entry(label, method, {name: convert(kind, name, text) for name, text in settings.items()}, recipe)


def convert(kind: type, name: str, text: str) -> Any:
    """The value of a setting, of the setting's type."""
    choose("setting", name, [field.name for field in fields(kind)])
    hint = without_none(get_type_hints(kind)[name])
    if found := choices(hint):
        return choose(f"value of {name}", text, found)
    if hint is bool:
        return choose(f"value of {name}", text, ("true", "false")) == "true"
    try:
        return {int: int, float: float}[hint](text)
    except KeyError:
        instead = "--hidden, for all methods alike" if name == "hidden" else "`vcl run`"
        raise VclError(f"{name} cannot be changed within --methods. Use {instead}.") from None
    except ValueError:
        what = "a whole number" if hint is int else "a number"
        raise VclError(f"{name}={text}: {text!r} is not {what}.") from None


def without_none(hint: Any) -> Any:
    """The type of a setting that is given: of `int | None` int.

    >>> without_none(int | None), without_none(float)
    (<class 'int'>, <class 'float'>)
    """
    parts = [part for part in get_args(hint) if part is not NoneType]
    return parts[0] if get_origin(hint) in (Union, UnionType) and len(parts) == 1 else hint


def choices(hint: Any) -> tuple[str, ...]:
    """The values that a setting can be given by name: of `Literal["mlp", "conv"] | Network` those of the Literal.

    >>> choices(Literal["mlp", "conv"] | int), choices(int)
    (('mlp', 'conv'), ())
    """
    parts = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    return tuple(value for part in parts if get_origin(part) is Literal for value in get_args(part))


@dataclass(frozen=True)
class Row:
    """One method over its seeds: the values of each measure."""

    label: str
    values: dict[str, list[float | None]]
    """None where a measure is not defined for the stream."""
    curve: list[list[float]]
    """Average accuracy after each task, for each seed."""
    notes: list[str]
    """What must be known for a fair comparison."""

    def average(self, measure: str) -> float | None:
        values = self.defined(measure)
        return mean(values) if values else None

    def spread(self, measure: str) -> float | None:
        """Standard deviation over seeds; 0 for a single one."""
        values = self.defined(measure)
        return (stdev(values) if len(values) > 1 else 0.0) if values else None

    def defined(self, measure: str) -> list[float]:
        """The values of all seeds, or none: a mean over some of the seeds would mislead."""
        values = [value for value in self.values[measure] if value is not None]
        return values if len(values) == len(self.values[measure]) else []


def row(
    label: str,
    results: Sequence[Result],
    spec: StreamSpec,
    network: Network,
    joint: Sequence[Result] = (),
) -> Row:
    """One method's runs, which learnt a stream of this spec with this network; `joint` has those of joint training.

    Without joint training on the same seeds intransigence is not defined.
    """
    values = {name: [measure(result, name) for result in results] for name in MEASURES}
    if len(joint) == len(results):
        pairs = zip(results, joint, strict=True)
        values["intransigence"] = [intransigence(a["accuracy_matrix"], b["accuracy_matrix"]) for a, b in pairs]
    curve = [[mean([a for a in line if a is not None]) for line in result["accuracy_matrix"]] for result in results]
    first = results[0]
    notes = []
    if first["stored_examples"]:
        notes.append(f"keeps {first['stored_examples']} examples")
    growth = first["parameters"] / plain_parameters(network, spec)
    if growth > 1.005:
        notes.append(f"{growth:.1f} × the parameters")
    if spec.scenario != "task" and METHODS[first["method"]].needs_task_id:
        notes.append("task identity given at test time")
    return Row(label, values, curve, notes)


def measure(result: Result, name: str) -> float | None:
    """One number of MEASURES."""
    if name in ("calibration_error", "brier_score"):
        scores: list[float | None] = [score.get(name) for score in result["scores"][-1]]  # type: ignore[misc]
        return None if None in scores else mean(score for score in scores if score is not None)
    if name == "negative_log_likelihood":
        return -mean(score["log_likelihood"] for score in result["scores"][-1])
    if name == "learning_accuracy":
        return learning_accuracy(result["accuracy_matrix"])
    value: float | None = result.get(name)  # type: ignore[assignment]
    return None if value is None else float(value)


def plain_parameters(network: Network, spec: StreamSpec) -> int:
    """Numbers in a network with one number per weight, with the stream's heads."""
    body = sum(i * o + o for i, o in network.widths(spec.input_shape))
    return body + spec.num_heads * (network.num_features(spec.input_shape) + 1) * spec.num_classes


class Difference(NamedTuple):
    """A measure of one method minus that of another, seed by seed."""

    mean: float
    low: float
    high: float
    """The 95 % confidence interval of the mean (Student's t over seeds)."""


def difference(row: Row, reference: Row, name: str = "average_accuracy") -> Difference | None:
    """How two methods differ on the same seeds; None where there are fewer than two seeds in common order.

    Both learn the same streams, so what a stream's permutations or order do to both cancels.
    """
    ours, theirs = row.defined(name), reference.defined(name)
    if len(ours) != len(theirs) or len(ours) < 2:
        return None
    from scipy.special import stdtrit  # here, since it takes as long to load as the command line

    gaps = [a - b for a, b in zip(ours, theirs, strict=True)]
    half = float(stdtrit(len(gaps) - 1, 0.975)) * stdev(gaps) / len(gaps) ** 0.5
    return Difference(mean(gaps), mean(gaps) - half, mean(gaps) + half)


def differences(row: Row, reference: Row) -> dict[str, Difference]:
    """How a method differs from another in each of DIFFERENCES that both have on the same seeds."""
    found = {name: difference(row, reference, name) for name in DIFFERENCES}
    return {name: gap for name, gap in found.items() if gap}


def differences_as_markdown(rows: Sequence[Row], reference: Row) -> str:
    """Every method against one: the mean difference over seeds, and its 95 % interval in brackets."""
    titles = [MEASURES[name][0].replace("(%)", "(points)") for name in DIFFERENCES]
    lines = [
        f"Paired differences to {reference.label} over seeds, with 95 % intervals (Student's t):",
        "",
        f"| method | {' | '.join(titles)} |",
        f"| --- |{' ---: |' * len(titles)}",
    ]
    for row in best_first(rows):
        if row is not reference and (found := differences(row, reference)):
            texts = [difference_cell(name, found.get(name)) for name in DIFFERENCES]
            lines.append(f"| {row.label} | {' | '.join(texts)} |")
    return "".join(f"{line}\n" for line in lines)


def difference_cell(name: str, found: Difference | None) -> str:
    """Mean (low … high), in the unit shown."""
    _, factor, digits = MEASURES[name]
    if found is None:
        return ""
    mean, low, high = (f"{factor * value:+.{digits}f}" for value in found)
    return f"{mean} ({low} … {high})"


def best_first(rows: Sequence[Row]) -> list[Row]:
    """In order of average accuracy."""
    return sorted(rows, key=lambda row: row.average("average_accuracy") or 0.0, reverse=True)


def cells(rows: Sequence[Row], measures: Sequence[str] = tuple(MEASURES)) -> list[list[str]]:
    """The table as text, best first; the first line has the titles. What is not defined is left empty."""
    lines = [["method", *(MEASURES[name][0] for name in measures), "note"]]
    for row in best_first(rows):
        line = [row.label, *(cell(row, name) for name in measures)]
        lines.append([*line, "; ".join(row.notes)])
    return lines


def cell(row: Row, name: str) -> str:
    """Mean ± standard deviation of one measure, in the unit shown."""
    _, factor, digits = MEASURES[name]
    average, spread = row.average(name), row.spread(name)
    if average is None or spread is None:
        return ""
    text = f"{factor * average:.{digits}f}"
    several = len(row.values[name]) > 1 and name not in CERTAIN
    return f"{text} ± {factor * spread:.{digits}f}" if several else text


def as_markdown(rows: Sequence[Row]) -> str:
    """The table for a document."""
    head, *body = cells(rows)
    lines = [head, ["---", *["---:"] * len(MEASURES), "---"], *body]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def as_csv(rows: Sequence[Row]) -> str:
    """Means and standard deviations with all their digits, as fractions and seconds; empty where not defined."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["method", "seeds", *(f"{name}{end}" for name in MEASURES for end in ("", "_std")), "note"])
    for row in best_first(rows):
        numbers = [number for name in MEASURES for number in (row.average(name), row.spread(name))]
        writer.writerow([row.label, len(row.curve), *numbers, "; ".join(row.notes)])
    return out.getvalue()
