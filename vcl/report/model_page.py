"""One HTML file about a model of one's own data."""

import base64
import json
from collections.abc import Callable, Sequence
from html import escape
from importlib.resources import files
from typing import Any

import numpy as np

from vcl.kept import KeptModel
from vcl.kept.decisions import HeldOut, risk_coverage

WIDTH, HEIGHT, EDGE = 360, 260, 60
BINS = 10
POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'"
STYLE = """
.plots { display: flex; flex-wrap: wrap; gap: 1.5rem; }
.plots figure { margin: 0; flex: 1 1 20rem; max-width: 30rem; }
.plots svg { width: 100%; height: auto; font-size: 12px; } .scroll { overflow-x: auto; }
.plots text { fill: currentColor; } .plots .frame { fill: none; stroke: currentColor; opacity: 0.4; }
.plots .ideal { stroke: currentColor; stroke-dasharray: 4 4; opacity: 0.5; }
.plots .line { fill: none; stroke: #3b78c4; stroke-width: 2; } .plots .dot { fill: #3b78c4; }
"""


def render(name: str, kept: KeptModel) -> str:
    """The page: the log, then calibration and rejection for each set of held-out examples."""
    style = (files("vcl.report.page") / "report.css").read_text(encoding="utf-8") + STYLE
    sections = "".join(_decisions(str(task), held) for task, held in kept.held_out.items())
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>vcl: {escape(name)}</title>
<style>{style}</style></head>
<body><header><h1>{escape(name)}: what it learnt</h1></header>
<main><section><p>{_summary(kept)}</p>{_log(kept.log)}{_downloads(kept.log)}</section>{sections}{_columns(kept)}</main>
</body></html>
"""


def _summary(kept: KeptModel) -> str:
    classes = ", ".join(escape(str(label)) for label in kept.model.classes_)
    total = sum(entry["examples"] for entry in kept.log)
    return f"{total} examples in {len(kept.log)} batches. Classes: {classes}."


LOG_COLUMNS: tuple[str, ...] = (
    "batch",
    "time",
    "source",
    "task",
    "examples",
    "held_out",
    "accuracy_before",
    "accuracy_after",
)
LOG_COLUMNS += ("log_likelihood_before", "log_likelihood_after", "calibration_error", "seconds")


SHOWN: dict[str, tuple[str, Callable[[Any], str]]] = {
    "batch": ("batch", str),
    "when (UTC)": ("time", lambda time: time[:16].replace("T", " ")),
    "source": ("source", str),
    "task": ("task", str),
    "examples": ("examples", "{:,}".format),
    "held out": ("held_out", "{:,}".format),
    "before (%)": ("accuracy_before", lambda part: f"{100 * part:.2f}"),
    "after (%)": ("accuracy_after", lambda part: f"{100 * part:.2f}"),
    "log-likelihood": ("log_likelihood_after", "{:.3f}".format),
    "calibration error (%)": ("calibration_error", lambda part: f"{100 * part:.2f}"),
    "seconds": ("seconds", "{:.1f}".format),
}
"""Columns of the page's table: what each shows, and how. Accuracy before is that of the whole batch."""


def _log(log: Sequence[dict[str, Any]]) -> str:
    heads = "".join(f"<th>{escape(name)}</th>" for name in (*SHOWN, "warnings"))
    rows = "".join(
        "<tr>"
        + "".join(f"<td>{_cell(entry[name], written)}</td>" for name, written in SHOWN.values())
        + f"<td>{escape('; '.join(entry['warnings']))}</td></tr>"
        for entry in log
    )
    return f"<h2>Batches</h2>{_table(heads, rows)}"


def _table(heads: str, rows: str) -> str:
    """A table that scrolls by itself where the page is narrow."""
    return f"<div class='scroll'><table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div>"


def _cell(value: Any, written: Callable[[Any], str]) -> str:
    return "–" if value is None else escape(written(value))


def _downloads(log: Sequence[dict[str, Any]]) -> str:
    """The log as files within the page."""
    lines = [",".join(LOG_COLUMNS)]
    lines += [",".join(json.dumps("" if e[name] is None else e[name]) for name in LOG_COLUMNS) for e in log]
    table = base64.b64encode("\n".join(lines).encode()).decode()
    whole = base64.b64encode(json.dumps(list(log), indent=2).encode()).decode()
    return (
        f"<p>Download: <a download='log.csv' href='data:text/csv;base64,{table}'>log as CSV</a>, "
        f"<a download='log.json' href='data:application/json;base64,{whole}'>with all it holds, as JSON</a></p>"
    )


def _columns(kept: KeptModel) -> str:
    if kept.encoder is None:
        return ""
    rows = "".join(
        f"<tr><td>{escape(c.name)}</td><td>{escape(c.kind)}</td><td>{_range(c)}</td>"
        f"<td>{'yes' if c.missing else ''}</td></tr>"
        for c in kept.encoder.columns
    )
    heads = "<th>column</th><th>kind</th><th>values</th><th>missing</th>"
    return f"<section><h2>Columns, as they were in the first batch</h2>{_table(heads, rows)}</section>"


def _range(column: Any) -> str:
    if column.kind == "category":
        return escape(", ".join(column.categories))
    return f"{column.low:.4g} to {column.high:.4g}, mean {column.mean:.4g}, standard deviation {column.std:.4g}"


def _decisions(task: str, held: HeldOut) -> str:
    """Calibration, and what rejecting unsure answers costs, on the examples held out of a task's last batch."""
    if not held.size:
        return ""
    confidence, accuracy = reliability(held)
    coverage, risk, _ = risk_coverage(held)
    most = max(0.05, float(np.ceil(20 * risk.max()) / 20))
    plots = [
        _plot(
            "Reliability: how often answers of each confidence are right",
            ("confidence", "accuracy"),
            confidence,
            accuracy,
            1.0,
            ideal=True,
        ),
        _plot(
            "Risk and coverage: the error rate when only the surest answers are given",
            ("part answered", "error rate"),
            coverage,
            risk,
            most,
        ),
    ]
    return (
        f"<section><h2>Held-out examples of {escape(task)}: {held.size}</h2>"
        f"<div class='plots'>{''.join(plots)}</div></section>"
    )


def reliability(held: HeldOut) -> tuple[np.ndarray, np.ndarray]:
    """Mean confidence and accuracy in bins of confidence that hold examples."""
    which = np.minimum((held.confidence * BINS).astype(int), BINS - 1)
    filled = [which == number for number in range(BINS) if (which == number).any()]
    return (
        np.array([held.confidence[rows].mean() for rows in filled]),
        np.array([held.correct[rows].mean() for rows in filled]),
    )


def _plot(
    title: str, axes: tuple[str, str], x: np.ndarray, y: np.ndarray, top: float, *, ideal: bool = False
) -> str:
    """A line of points in a frame from 0 to 1 and from 0 to `top`."""
    across, up = WIDTH - EDGE - 24, HEIGHT - EDGE - 12

    def place(a: float, b: float) -> str:
        return f"{EDGE + across * a:.1f},{12 + up * (1 - b / top):.1f}"

    line = " ".join(place(a, b) for a, b in zip(x, y, strict=True))
    dots = "".join(
        "<circle class='dot' r='3' cx='{}' cy='{}'/>".format(*place(a, b).split(","))
        for a, b in zip(x, y, strict=True)
        if len(x) <= BINS
    )
    start, end = place(0.0, 0.0).split(","), place(1.0, top).split(",")
    diagonal = f"<line class='ideal' x1='{start[0]}' y1='{start[1]}' x2='{end[0]}' y2='{end[1]}'/>" if ideal else ""
    ticks = "".join(
        f"<text x='{EDGE + across * part:.0f}' y='{30 + up}' text-anchor='middle'>{part:.0%}</text>"
        f"<text x='{EDGE - 6}' y='{16 + up * (1 - part):.0f}' text-anchor='end'>{100 * part * top:.3g}%</text>"
        for part in (0, 0.5, 1)
    )
    return (
        f"<figure><svg viewBox='0 0 {WIDTH} {HEIGHT}' role='img' aria-label='{escape(title)}'>"
        f"<rect class='frame' x='{EDGE}' y='12' width='{across}' height='{up}'/>{diagonal}"
        f"<polyline class='line' points='{line}'/>{dots}{ticks}"
        f"<text x='{EDGE + across / 2}' y='{48 + up}' text-anchor='middle'>{axes[0]}</text>"
        f"<text x='12' y='{12 + up / 2}' text-anchor='middle' transform='rotate(-90 12 {12 + up / 2})'>"
        f"{axes[1]}</text>"
        f"</svg><figcaption>{escape(title)}</figcaption></figure>"
    )
