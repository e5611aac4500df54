"""Methods side by side: a table of what their runs found."""

import csv
import io
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from statistics import mean, stdev
from typing import Any, Literal, get_args, get_origin, get_type_hints

from vcl.errors import VclError, choose
from vcl.methods import METHODS

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
"""What is measured: its title, the factor that brings it to the unit shown (points, where it is 100), digits."""
CERTAIN = {"parameters", "stored_examples"}
"""What does not depend on the seed, so that it has no spread."""


@dataclass(frozen=True)
class Entry:
    """A method as it was asked for: `vcl`, or `vcl:coreset=200` with settings of its own."""

    label: str
    method: str
    settings: dict[str, Any]
    recipe: str = "fast"


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
    method, *changes = label.split(":")
    kind = METHODS[choose("method", method, METHODS)]
    settings = {}
    for change in changes:
        name, equals, value = change.partition("=")
        if not equals:
            raise VclError(f"{label!r} should read method:setting=value, such as vcl:coreset=200.")
        settings[name] = value
    recipe = settings.pop("recipe", "fast")
    return Entry(label, method, {name: convert(kind, name, text) for name, text in settings.items()}, recipe)


def convert(kind: type, name: str, text: str) -> Any:
    """A setting's value as its type has it."""
    hints = get_type_hints(kind)
    choose("setting", name, [field.name for field in fields(kind)])
    if get_origin(hints[name]) is Literal:
        return choose(f"value of {name}", text, get_args(hints[name]))
    try:
        return {int: int, float: float}[hints[name]](text)
    except KeyError:
        raise VclError(f"{name} cannot be changed within --methods. Use its own flag, or `vcl run`.") from None
    except ValueError:
        raise VclError(f"{name}={text}: {text!r} is not a {hints[name].__name__}.") from None


@dataclass(frozen=True)
class Row:
    """One method over its seeds: each measure's values."""

    label: str
    values: dict[str, list[float]]
    curve: list[list[float]]
    """Average accuracy after each task, for each seed."""
    notes: list[str]
    """What must be known to compare fairly."""

    def average(self, measure: str) -> float:
        return mean(self.values[measure])

    def spread(self, measure: str) -> float:
        """Standard deviation over seeds; 0 for a single one."""
        return stdev(self.values[measure]) if len(self.values[measure]) > 1 else 0.0


def row(label: str, results: Sequence[dict[str, Any]], spec: dict[str, Any]) -> Row:
    """What one method's runs found; `spec` is their stream's, as the run folder has it."""
    values = {name: [measure(result, name) for result in results] for name in MEASURES}
    curve = [[mean([a for a in line if a is not None]) for line in result["accuracy_matrix"]] for result in results]
    first = results[0]
    notes = []
    if first["stored_examples"]:
        notes.append(f"keeps {first['stored_examples']} examples")
    growth = first["parameters"] / plain_parameters(first["config"]["learner"]["hidden"], spec)
    if growth > 1.005:
        notes.append(f"{growth:.1f} × the parameters")
    if spec["scenario"] != "task" and METHODS[first["method"]].told_the_task:
        notes.append("told the task when tested")
    return Row(label, values, curve, notes)


def measure(result: dict[str, Any], name: str) -> float:
    if name == "calibration_error":
        return mean(score["calibration_error"] for score in result["scores"][-1])
    return float(result[name])


def plain_parameters(hidden: Sequence[int], spec: dict[str, Any]) -> int:
    """Numbers in a point network with these hidden layers and the stream's heads."""
    widths = [math.prod(spec["input_shape"]), *hidden]
    body = sum(i * o + o for i, o in itertools.pairwise(widths))
    return body + (max(spec["heads"]) + 1) * (widths[-1] + 1) * spec["num_classes"]


def best_first(rows: Sequence[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: -row.average("average_accuracy"))


def cells(rows: Sequence[Row]) -> list[list[str]]:
    """The table as text, best first; the first line has the titles."""
    lines = [["method", *(title for title, _, _ in MEASURES.values()), "note"]]
    for row in best_first(rows):
        line = [row.label]
        for name, (_, factor, digits) in MEASURES.items():
            text = f"{factor * row.average(name):.{digits}f}"
            if len(row.values[name]) > 1 and name not in CERTAIN:
                text += f" ± {factor * row.spread(name):.{digits}f}"
            line.append(text)
        lines.append([*line, "; ".join(row.notes)])
    return lines


def as_markdown(rows: Sequence[Row]) -> str:
    head, *body = cells(rows)
    lines = [head, ["---", *["---:"] * len(MEASURES), "---"], *body]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def as_csv(rows: Sequence[Row]) -> str:
    """Means and standard deviations with all their digits, as fractions and seconds."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["method", "seeds", *(f"{name}{end}" for name in MEASURES for end in ("", "_std")), "note"])
    for row in best_first(rows):
        numbers = [number for name in MEASURES for number in (row.average(name), row.spread(name))]
        writer.writerow([row.label, len(row.curve), *numbers, "; ".join(row.notes)])
    return out.getvalue()
