"""The search behind every method's settings: candidates on validation data, never on test data.

    .venv/bin/python bench/search.py ewc split-mnist --seeds 2 --first-seed 100
    .venv/bin/python bench/search.py icarl split-mnist --scenario class

Candidates are listed in bench/candidates/METHOD.json, for each benchmark (`split-mnist`, `split-mnist/class` for a
scenario, or any name for a plan that says its benchmark) as grids: every combination of a grid's values is one. Each
candidate is what `vcl run BENCHMARK --method METHOD --validation 0.1 ...` does with these settings. Runs are kept in
the folder that --out names, so that a search which was interrupted, or a grid which grew, resumes. The
outcome is a Markdown table, best first, printed and kept in results/search.
"""

import argparse
import json
import sys
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Any

from vcl import StreamOptions, configure
from vcl.runs.status import RunStatus
from vcl.runs.sweep import run_all

CANDIDATES = Path(__file__).parent / "candidates"
OUTCOMES = Path(__file__).parent.parent / "results" / "search"


def settings_of(grids: list[dict[str, list[Any]]]) -> list[dict[str, Any]]:
    return [dict(zip(grid, values, strict=True)) for grid in grids for values in product(*grid.values())]


def outcome(rows: list[tuple[dict[str, Any], list[float]]]) -> str:
    """A Markdown table, best first."""
    lines = ["| settings | validation accuracy (%) | seeds |", "|---|---|---|"]
    for settings, accuracies in sorted(rows, key=lambda row: -mean(row[1])):
        text = ", ".join(f"{key} {value}" for key, value in settings.items())
        lines.append(f"| {text} | {mean(accuracies):.2f} | {', '.join(f'{a:.2f}' for a in accuracies)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("method")
    parser.add_argument("benchmark")
    parser.add_argument("--scenario", choices=("task", "domain", "class"))
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("runs/search"))
    chosen = parser.parse_args()
    place = f"{chosen.benchmark}/{chosen.scenario}" if chosen.scenario else chosen.benchmark
    plan = json.loads((CANDIDATES / f"{chosen.method}.json").read_text())[place]
    stream = StreamOptions(scenario=chosen.scenario, validation=0.1, num_tasks=plan.get("num_tasks"))
    candidates = settings_of(plan["grids"])
    configs = [
        configure(
            plan.get("benchmark", chosen.benchmark), chosen.method, seed=seed, threads=1, stream=stream, **settings
        )
        for settings, seed in product(candidates, range(chosen.first_seed, chosen.first_seed + chosen.seeds))
    ]

    def watch(number: int, now: RunStatus) -> None:
        if now.phase == "complete" and not done[number]:
            done[number] = True
            print(f"{sum(done)} of {len(done)} runs", file=sys.stderr, flush=True)

    done = [False] * len(configs)
    results = run_all(configs, chosen.out, chosen.jobs, watch=watch)
    found = [100 * result["average_accuracy"] for result in results]
    seeds = chosen.seeds
    rows = [(settings, found[i * seeds : (i + 1) * seeds]) for i, settings in enumerate(candidates)]
    scenario = f" --scenario {chosen.scenario}" if chosen.scenario else ""
    first = f" --first-seed {chosen.first_seed}" if chosen.first_seed else ""
    command = f"bench/search.py {chosen.method} {chosen.benchmark}{scenario} --seeds {seeds}{first}"
    tasks = f", the first {plan['num_tasks']} tasks" if "num_tasks" in plan else ""
    heading = place.replace(chosen.benchmark, plan.get("benchmark", chosen.benchmark))
    text = f"# {chosen.method} on {heading}{tasks}\n\n`{command}`\n\n{outcome(rows)}"
    OUTCOMES.mkdir(parents=True, exist_ok=True)
    (OUTCOMES / f"{chosen.method}-{place.replace('/', '-')}.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
