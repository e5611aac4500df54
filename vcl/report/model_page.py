"""One HTML file about a model of one's own data."""

import base64
import json
from collections.abc import Callable, Sequence
from html import escape
from importlib.resources import files
from typing import Any

from vcl.kept import KeptModel
from vcl.kept.decisions import HeldOut
from vcl.report.page import trust
from vcl.report.page.downloads import download

POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'"


def render(name: str, kept: KeptModel) -> str:
    """The page: the log, then calibration and rejection for each set of held-out examples."""
    style = (files("vcl.report.page") / "report.css").read_text(encoding="utf-8")
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


WORDS = {"source", "task", "warning", "kind", "values"}
"""Columns of words: from the left, broken into lines."""


def _log(log: Sequence[dict[str, Any]]) -> str:
    rows = [[_cell(entry[name], written) for name, written in SHOWN.values()] for entry in log]
    warnings = [(str(entry["batch"]), warning) for entry in log for warning in entry["warnings"]]
    told = f"<h3>Warnings</h3>{_table(('batch', 'warning'), warnings)}" if warnings else ""
    return f"<h2>Batches</h2>{_table(tuple(SHOWN), rows)}{told}"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table that scrolls by itself where the page is narrow."""
    kinds = ["class='text'" if name in WORDS else "" for name in heads]
    top = "".join(f"<th {kind}>{escape(name)}</th>" for kind, name in zip(kinds, heads, strict=True))
    body = "".join(
        f"<tr><th scope='row'>{escape(row[0])}</th>"
        + "".join(f"<td {kind}>{escape(cell)}</td>" for kind, cell in zip(kinds[1:], row[1:], strict=True))
        + "</tr>"
        for row in rows
    )
    return (
        f"<div class='scroll' tabindex='0'><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _cell(value: Any, written: Callable[[Any], str]) -> str:
    return "–" if value is None else written(value)


def _downloads(log: Sequence[dict[str, Any]]) -> str:
    """The log as files within the page."""
    whole = base64.b64encode(json.dumps(list(log), indent=2).encode()).decode()
    rows = ([("" if entry[name] is None else entry[name]) for name in LOG_COLUMNS] for entry in log)
    return (
        f"{download('log', LOG_COLUMNS, rows)}<p class='soft'>"
        f"<a download='log.json' href='data:application/json;base64,{whole}'>All that the log holds, as JSON</a></p>"
    )


def _columns(kept: KeptModel) -> str:
    if kept.encoder is None:
        return ""
    rows = [[c.name, c.kind, _range(c), "yes" if c.missing else ""] for c in kept.encoder.columns]
    heads = ("column", "kind", "values", "missing")
    table = _table(heads, rows) + download("columns", heads, rows)
    return f"<section><h2>Columns, as they were in the first batch</h2>{table}</section>"


def _range(column: Any) -> str:
    if column.kind == "category":
        return ", ".join(column.categories)
    return f"{column.low:.4g} to {column.high:.4g}, mean {column.mean:.4g}, standard deviation {column.std:.4g}"


def _decisions(task: str, held: HeldOut) -> str:
    """Calibration, and what rejecting unsure answers costs, on the examples held out of a task's last batch."""
    if not held.size:
        return ""
    charts = trust.charts([trust.Answers(task, held.confidence, held.correct)])
    return f"<section><h2>Held-out examples of {escape(task)}: {held.size}</h2>{charts}</section>"
