"""One self-contained HTML file about runs: opens from disk, without a network."""

from collections.abc import Sequence
from html import escape
from typing import Any

from vcl.report.figures import draw_accuracy

STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --paper: #fff; --line: #d0d7de; --soft: #57606a; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --paper: #0d1117; --line: #30363d; --soft: #9198a1; } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 2rem auto;
       max-width: 60rem; padding: 0 1rem; }
h1, h2 { line-height: 1.2; } h2 { margin-top: 2.5rem; }
.number { font-size: 2.2rem; font-weight: 700; } .soft { color: var(--soft); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; margin: 1rem 0; }
th, td { padding: .3rem .7rem; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
td.cell { color: #111; }
figure { margin: 1rem 0; background: #fff; border-radius: 6px; } figure svg { width: 100%; height: auto; }
code, pre { font: 14px/1.5 ui-monospace, monospace; } pre { overflow-x: auto; }
"""


def render(runs: Sequence[tuple[dict[str, Any], dict[str, Any]]]) -> str:
    """The page for (record, result) pairs: a summary when there are several, then a section for each."""
    summary = _summary([result for _, result in runs]) if len(runs) > 1 else ""
    sections = "".join(_section(record, result) for record, result in runs)
    return (
        "<!doctype html>\n<html lang='en'><head><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width, initial-scale=1'>"
        f"<title>vcl: {escape(runs[0][1]['benchmark'])}</title><style>{STYLE}</style></head>"
        f"<body><h1>Continual learning, task by task</h1>{summary}{sections}</body></html>\n"
    )


def _summary(results: Sequence[dict[str, Any]]) -> str:
    rows = [
        [
            r["run"],
            percent(r["average_accuracy"]),
            f"{100 * r['forgetting']:.2f}",
            f"{100 * r['backward_transfer']:+.2f}",
            f"{100 * r['forward_transfer']:+.2f}",
        ]
        for r in results
    ]
    head = ["run", "average accuracy (%)", "forgetting", "backward transfer", "forward transfer"]
    return f"<h2>{len(results)} runs</h2>{_table(head, rows)}"


def _section(record: dict[str, Any], result: dict[str, Any]) -> str:
    drawing = draw_accuracy([result], "svg").decode()
    names = [f"{number}: {name}" for number, name in enumerate(result["task_names"], start=1)]
    settings = "\n".join(
        f"{k} = {v}" for k, v in {**record["config"]["stream"], **record["config"]["learner"]}.items()
    )
    scores = {
        "log-likelihood": "log_likelihood",
        "expected calibration error": "calibration_error",
        "entropy, total (nats)": "total_entropy",
        "entropy, aleatoric (nats)": "aleatoric_entropy",
    }
    score_rows = [[label, *(f"{s[key]:.4f}" for s in result["scores"][-1])] for label, key in scores.items()]
    return f"""
<h2>{escape(result["benchmark"])}, {escape(result["method"])}, seed {result["seed"]}</h2>
<p><span class="number">{percent(result["average_accuracy"])} %</span> average accuracy after the last task;
forgetting {100 * result["forgetting"]:.2f}, backward transfer {100 * result["backward_transfer"]:+.2f},
forward transfer {100 * result["forward_transfer"]:+.2f} points; {result["steps"]} steps in
{result["train_seconds"]:.0f} s.</p>
<figure>{drawing[drawing.index("<svg") :]}</figure>
<h3>Accuracy (%) on each task, after each task</h3>
{_matrix(names, result["accuracy_matrix"])}
<h3>What it knows of what it knows, after the last task</h3>
{_table(["", *names], score_rows)}
<h3>How it was made</h3>
<pre>{escape(record["command"])}</pre>
<p class="soft">vcl {escape(record["version"])}, {escape(record["created"])},
recipe {escape(record["config"]["recipe"])},
{record["config"]["threads"]} thread(s), folder {escape(result["run"])}</p>
<details><summary>All settings</summary><pre>{escape(settings)}</pre></details>
"""


def _matrix(names: Sequence[str], matrix: Sequence[Sequence[float | None]]) -> str:
    rows = []
    for number, row in enumerate(matrix, start=1):
        cells = "".join("<td></td>" if a is None else _cell(a) for a in row)
        seen = [a for a in row if a is not None]
        rows.append(f"<tr><td>{number}</td>{cells}<td><b>{percent(sum(seen) / len(seen))}</b></td></tr>")
    head = "".join(f"<th>{escape(name)}</th>" for name in ["after task", *names, "average"])
    return f"<div class='scroll'><table><tr>{head}</tr>{''.join(rows)}</table></div>"


def _cell(accuracy: float) -> str:
    """White at full accuracy, orange where half is lost; legible in both colour schemes."""
    loss = min(1.0, 2.0 * (1.0 - accuracy))
    colour = "#" + "".join(f"{round(255 + loss * (end - 255)):02x}" for end in (230, 120, 50))
    return f"<td class='cell' style='background:{colour}'>{percent(accuracy)}</td>"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    top = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<div class='scroll'><table><tr>{top}</tr>{body}</table></div>"


def percent(fraction: float) -> str:
    return f"{100 * fraction:.2f}"
