"""What is printed of models of one's own data: pure functions to tables and sentences."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.table import Table

from vcl.cli.tables import escape

if TYPE_CHECKING:
    from vcl.kept import KeptModel

SHOWN_ROWS = 20


def log_table(entries: Sequence[dict[str, Any]], title: str) -> Table:
    """One row for each batch: what, when, how many, how well before and after."""
    table = Table(title=escape(title), title_justify="left")
    for name in ("batch", "when (UTC)", "source", "task"):
        table.add_column(name)
    for name in ("examples", "held out", "before (%)", "after (%)", "seconds"):
        table.add_column(name, justify="right")
    table.add_column("remarks")
    for entry in entries:
        new = entry["new_classes"]
        remarks = [f"{len(new)} new classes"] * bool(new) + [w.split(":")[0] for w in entry["warnings"]]
        # Logs of earlier versions do not have it.
        if forgotten := entry.get("forgetting"):
            remarks.append(f"{100 * forgotten:.0f} % forgotten")
        table.add_row(
            str(entry["batch"]),
            entry["time"][:16].replace("T", " "),
            escape(entry["source"]),
            escape(str(entry["task"])),
            str(entry["examples"]),
            str(entry["held_out"]),
            percent(entry["accuracy_before"]),
            percent(entry["accuracy_after"]),
            f"{entry['seconds']:.1f}",
            escape("; ".join(remarks)),
        )
    return table


def percent(fraction: float | None) -> str:
    return "–" if fraction is None else f"{100 * fraction:.2f}"


def facts(kept: "KeptModel") -> str:
    """What the model is, in a few lines."""
    model = kept.model
    warnings = [f"  batch {e['batch']}: {w}" for e in kept.log for w in e["warnings"]]
    inputs = f"{len(kept.encoder.columns)} columns" if kept.encoder else "images"
    lines = [
        f"Method {type(model.learner).__name__}, {len(model.tasks_)} tasks, {len(model.classes_)} classes "
        f"({', '.join(map(str, model.classes_[:10]))}{', …' if len(model.classes_) > 10 else ''}), from {inputs}.",
        f"{sum(e['examples'] for e in kept.log)} examples learnt in {len(kept.log)} batches; "
        f"{model.learner.footprint(model.snapshot.state).stored_examples} kept.",
        f"State SHA-256: {kept.fingerprint}",
        *(["Warnings:"] if warnings else []),
        *warnings,
    ]
    return escape("\n".join(lines))


def model_json(kept: "KeptModel") -> dict[str, Any]:
    """The same for scripts, with the whole log."""
    return {
        "tasks": [str(task) for task in kept.model.tasks_],
        "classes": [str(label) for label in kept.model.classes_],
        "columns": kept.encoder.to_json() if kept.encoder else None,
        "log": kept.log,
        "state_sha256": kept.fingerprint,
    }


def predictions_table(columns: Mapping[str, Any]) -> Table:
    """The first predictions."""
    rows = len(columns["class"])
    names = [name for name in columns if not name.startswith("p(")]
    more = f" (the first {SHOWN_ROWS} of {rows}; all with --output)" if rows > SHOWN_ROWS else ""
    table = Table(title=f"Predictions{more}", title_justify="left")
    table.add_column("example", justify="right")
    for name in names:
        table.add_column(
            name.replace("_entropy", " (nats)"), justify="left" if name in ("class", "set") else "right"
        )
    for number in range(min(rows, SHOWN_ROWS)):
        values = [columns[name][number] for name in names]
        table.add_row(str(number + 1), *(f"{v:.4f}" if v.dtype.kind == "f" else escape(str(v)) for v in values))
    return table
