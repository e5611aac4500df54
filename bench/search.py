"""The search behind the fast recipes: candidates on validation data, never on test data.

    .venv/bin/python bench/search.py split-mnist --seeds 2
    .venv/bin/python bench/search.py permuted-mnist --seeds 1

Each candidate is what `vcl run BENCHMARK --validation 0.1 ...` does with these settings. Runs are kept in the folder
that --out names; an interrupted search goes on where it was. The outcome is a Markdown table, best first.
"""

import argparse
import sys
from itertools import product
from pathlib import Path
from statistics import mean

from vcl import StreamOptions, configure
from vcl.sweep import Standing, run_all

SPLIT = [
    {"epochs": epochs, "variance_rate": rate, "init_std": spread}
    for epochs, rate, spread in ((40, 0.3, 0.2), (40, 0.3, 0.1), (40, 1.0, 0.1), (100, 1.0, 0.1))
]
PERMUTED = [{"epochs": 30, "prior_std": std} for std in (0.3, 1.0)]
CANDIDATES = {"split-mnist": (SPLIT, None), "permuted-mnist": (PERMUTED, 5)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("benchmark", choices=CANDIDATES)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("runs/search"))
    chosen = parser.parse_args()
    candidates, num_tasks = CANDIDATES[chosen.benchmark]
    stream = StreamOptions(validation=0.1, num_tasks=num_tasks)
    configs = [
        configure(chosen.benchmark, seed=seed, threads=1, stream=stream, **settings)
        for settings, seed in product(candidates, range(chosen.seeds))
    ]

    def watch(number: int, now: Standing) -> None:
        if now.complete and not done[number]:
            done[number] = True
            print(f"{sum(done)} of {len(done)} runs", file=sys.stderr, flush=True)

    done = [False] * len(configs)
    results = run_all(configs, chosen.out, chosen.jobs, watch=watch)
    rows = []
    for number, settings in enumerate(candidates):
        accuracies = [
            100 * r["average_accuracy"] for r in results[number * chosen.seeds : (number + 1) * chosen.seeds]
        ]
        rows.append((mean(accuracies), settings, accuracies))
    print("| settings | validation accuracy (%) | seeds |\n|---|---|---|")
    for average, settings, accuracies in sorted(rows, key=lambda row: -row[0]):
        text = ", ".join(f"{key} {value}" for key, value in settings.items())
        print(f"| {text} | {average:.2f} | {', '.join(f'{a:.2f}' for a in accuracies)} |")


if __name__ == "__main__":
    main()
