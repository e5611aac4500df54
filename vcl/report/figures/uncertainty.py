"""Whether confidence can be trusted: reliability diagrams and selective prediction."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from vcl.analysis.uncertainty import CURVE, Report, pooled
from vcl.errors import VclError
from vcl.files import write_output, writing
from vcl.report.figures.drawing import DASHES, MARKERS, canvas, caption, method_colour, saved, tidy

KINDS = (".pdf", ".png", ".svg")
LEAST = 20
"""A bin with fewer examples says little."""


def uncertainty_figure(title: str, reports: Mapping[str, Sequence[Report]], path: Path) -> None:
    """Draw runs' reports, by method, into a PNG, SVG or PDF file."""
    check_kind(path)
    with writing(path):
        write_output(path, saved(draw_uncertainty(title, reports), path.suffix[1:]))


def check_kind(path: Path) -> None:
    """Refuse a file of another kind, before anything is measured."""
    if path.suffix not in KINDS:
        raise VclError(f"A figure's file must end in {', '.join(KINDS)}, but it is {path}.")


def draw_uncertainty(title: str, reports: Mapping[str, Sequence[Report]]) -> Figure:
    """Left a reliability diagram, right the risk of answering only where confidence is highest."""
    figure = canvas(9.0, 4.0, title)
    left, right = figure.subplots(1, 2)
    left.plot([0, 1], [0, 1], color="#9a9a9a", lw=0.8, ls=":")
    for number, (name, several) in enumerate(reports.items()):
        style = {"color": method_colour(name), "ls": DASHES[number % len(DASHES)], "lw": 1.3}
        draw_reliability(left, name, several, number, style)
        risks = 100 * np.mean([report.risk_curve for report in several], axis=0)
        right.plot(100 * np.array(CURVE), risks, label=name, **style)
    lowest = min(float(np.min(np.asarray(one.get_data()), initial=0.9)) for one in left.lines[1:])
    left.set(xlabel="confidence", ylabel="accuracy", xlim=(lowest - 0.03, 1.01), ylim=(lowest - 0.03, 1.01))
    left.legend(frameon=False, fontsize=8, loc="upper left")
    right.set(xlabel="answered, the most confident first (%)", ylabel="wrong among those answered (%)")
    right.set_ylim(bottom=0.0)
    for axes in (left, right):
        tidy(axes, grid="both")
    caption(
        figure,
        f"Left: test examples of all tasks and runs, in bins of confidence that hold {LEAST} or more; above the "
        "dotted line: under-confident. Right: mean over tasks and runs. Number of runs in brackets.",
    )
    return figure


def draw_reliability(
    axes: Axes, name: str, reports: Sequence[Report], number: int, style: dict[str, object]
) -> None:
    """Accuracy against confidence, of one method."""
    found = pooled([report.reliability for report in reports])
    enough = found.counts >= LEAST
    label = f"{name} ({len(reports)})"
    marker = MARKERS[number % len(MARKERS)]
    axes.plot(found.confidence[enough], found.accuracy[enough], marker=marker, ms=4, label=label, **style)  # type: ignore[arg-type]
