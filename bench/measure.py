"""Measuring in turn, and writing what was measured as JSON and Markdown."""

import json
import os
import platform
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

FOLDER = Path(os.environ.get("VCL_BENCH_OUT") or Path(__file__).parent.parent / "results" / "bench")
"""Where measurements are written. `make bench` has a folder of its own, so that those that the docs quote stay."""

Timer = Callable[[], float]
"""Does something and says how long it took."""


def in_turn(timers: dict[str, Timer], rounds: int) -> dict[str, list[float]]:
    """Each timer once for warming up (and compiling), then all of them in turn: what disturbs one disturbs all."""
    for timer in timers.values():
        timer()
    taken: dict[str, list[float]] = {name: [] for name in timers}
    for _ in range(rounds):
        for name, timer in timers.items():
            taken[name].append(timer())
    return taken


def ratio(taken: dict[str, list[float]], one: str, other: str) -> float:
    """How many times as long `one` takes: the fastest of each, which other processes disturbed least."""
    return min(taken[one]) / min(taken[other])


def clock() -> float:
    """On one core the time that this process had, so that others do not count; otherwise the time on the wall."""
    return time.process_time() if os.environ.get("NPROC") == "1" else time.perf_counter()


def use_cores(count: int) -> None:
    """Restrict JAX to so many cores. To be called before it computes anything."""
    os.environ["NPROC"] = str(count)


def machine() -> dict[str, Any]:
    """What the numbers depend on."""
    from vcl.runs.config import processor

    return {
        "processor": processor(),
        "cores": len(os.sched_getaffinity(0)),
        "load": [round(value, 1) for value in os.getloadavg()],
        "python": platform.python_version(),
        "jax": version("jax"),
    }


def write(name: str, title: str, rows: Sequence[dict[str, Any]]) -> None:
    """NAME.json and NAME.md in FOLDER; the table is printed too."""
    facts = machine()
    columns = list(rows[0])
    table = [f"| {' | '.join(columns)} |", f"| {' | '.join('---' for _ in columns)} |"]
    table += [f"| {' | '.join(shown(row.get(column)) for column in columns)} |" for row in rows]
    described = ", ".join(f"{key} {value}" for key, value in facts.items())
    text = f"# {title}\n\n{described}\n\n" + "\n".join(table) + "\n"
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / f"{name}.md").write_text(text)
    (FOLDER / f"{name}.json").write_text(
        json.dumps({"title": title, "machine": facts, "rows": rows}, indent=1) + "\n"
    )
    print(text)


def shown(value: Any) -> str:
    """
    >>> shown(1.23456), shown(None), shown("split")
    ('1.23', '', 'split')
    """
    if value is None:
        return ""
    return f"{value:.3g}" if isinstance(value, float) else str(value)
