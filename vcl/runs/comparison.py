"""Methods side by side: a table of their runs' results."""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass, fields
from statistics import mean, stdev
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from vcl.core import StreamSpec
from vcl.errors import VclError, choose
from vcl.methods import METHODS
from vcl.nets import Network
from vcl.runs.results import Result

MEASURES = {
    "average_accuracy": ("accuracy (%)", 100.0, 2),
    "forgetting": ("forgetting", 100.0, 2),
    "backward_transfer": ("backward transfer", 100.0, 2),
    "forward_transfer": ("forward transfer", 100.0, 2),
    "calibration_error": ("calibration error", 100.0, 2),
    "parameters": ("parameters", 1.0, 0),
    "stored_examples": ("stored examples", 1.0, 0),
    "train_seconds": ("training (s)", 1.0, 0),
}
"""What is measured: title, factor to the unit shown (100: percentage points), digits."""
CERTAIN = {"parameters", "stored_examples"}
"""Measures that do not depend on the seed, so that they have no standard deviation."""


@dataclass(frozen=True)
class Entry:
    """A method as the user names it: `vcl`, or `vcl:coreset=200` with settings of its own."""

    label: str
    method: str
    settings: dict[str, Any]
    recipe: str | None = None


def entries(asked: str) -> list[Entry]:
    """`all`, or names with commas between."""
    names = list(METHODS) if asked == "all" else [part.strip() for part in asked.split(",") if part.strip()]
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
    hint = get_type_hints(kind)[name]
    if found := choices(hint):
        return choose(f"value of {name}", text, found)
    try:
        return {int: int, float: float}[hint](text)
    except KeyError:
        raise VclError(f"{name} cannot be changed within --methods. Use its own flag, or `vcl run`.") from None
    except ValueError:
        what = "a whole number" if hint is int else "a number"
        raise VclError(f"{name}={text}: {text!r} is not {what}.") from None


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


def row(label: str, results: Sequence[Result], spec: StreamSpec, network: Network) -> Row:
    """One method's runs, which learnt a stream of this spec with this network."""
    values = {name: [measure(result, name) for result in results] for name in MEASURES}
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
    if name == "calibration_error":
        return mean(score["calibration_error"] for score in result["scores"][-1])
    value: float | None = result[name]  # type: ignore[literal-required]
    return None if value is None else float(value)


def plain_parameters(network: Network, spec: StreamSpec) -> int:
    """Numbers in a network with one number per weight, with the stream's heads."""
    body = sum(i * o + o for i, o in network.widths(spec.input_shape))
    return body + spec.num_heads * (network.num_features(spec.input_shape) + 1) * spec.num_classes


def best_first(rows: Sequence[Row]) -> list[Row]:
    """In order of average accuracy."""
    return sorted(rows, key=lambda row: row.average("average_accuracy") or 0.0, reverse=True)


def cells(rows: Sequence[Row]) -> list[list[str]]:
    """The table as text, best first; the first line has the titles. What is not defined is left empty."""
    lines = [["method", *(title for title, _, _ in MEASURES.values()), "note"]]
    for row in best_first(rows):
        line = [row.label, *(cell(row, name) for name in MEASURES)]
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
