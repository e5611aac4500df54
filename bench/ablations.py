"""What each part of the paper's recipe does: one setting of it changed at a time.

    .venv/bin/python bench/ablations.py split-mnist --seeds 3
    .venv/bin/python bench/ablations.py permuted-mnist --seeds 3

The base is the recipe `paper` with 40 epochs a task instead of 600 or 800; on permuted MNIST also with one sample
instead of ten, the first three tasks only, and at most 120 epochs. Test data; nothing is chosen by it. Results are
kept as JSON in results/ablations, beside a table and a figure, and what is kept is not run again.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

import vcl
from vcl.report.figures.drawing import DISTINCT, canvas, caption, saved, tidy
from vcl.runs.archive import find, is_whole, keep, kept_results
from vcl.runs.comparison import Row, cell, difference, difference_cell, row
from vcl.runs.results import Result
from vcl.runs.sweep import run_all

KEPT = Path(__file__).parent.parent / "results"
BASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "split-mnist": ({}, {"epochs": 40}),
    "permuted-mnist": ({"num_tasks": 3}, {"epochs": 40, "train_samples": 1}),
}
"""Options of the stream, and what departs from the recipe."""
BASE = "the base"
CHANGES: dict[str, dict[str, dict[str, Any]]] = {
    BASE: {BASE: {}},
    "epochs": {"20 epochs": {"epochs": 20}, "120 epochs": {"epochs": 120}, "600 epochs": {"epochs": 600}},
    "samples": {
        "1 sample": {"train_samples": 1},
        "3 samples": {"train_samples": 3},
        "10 samples": {"train_samples": 10},
    },
    "estimator": {"weights sampled": {"estimator": "weights"}},
    "start": {"previous posterior": {"start": "previous"}},
    "rate": {"plateau": {"schedule": "plateau"}, "cosine": {"schedule": "cosine"}},
    "prior": {
        "prior N(0, 0.1²)": {"prior_std": 0.1},
        "prior N(0, 0.3²)": {"prior_std": 0.3},
        "prior N(0, 3²)": {"prior_std": 3.0},
    },
    "coreset": {
        "40 random": {"coreset": 40},
        "40 k-center": {"coreset": 40, "coreset_selection": "k-center"},
        "200 random": {"coreset": 200},
        "200 k-center": {"coreset": 200, "coreset_selection": "k-center"},
    },
    "published code": {
        "no ReLU after the last hidden layer": {"last_hidden": "linear"},
        "noise per class": {"noise_per": "class"},
        "noise per minibatch": {"noise_per": "batch"},
        "softmax over all heads": {"test_softmax": "all"},
        "noise per class, softmax over all": {"noise_per": "class", "test_softmax": "all"},
    },
}


def variants(benchmark: str) -> dict[tuple[str, str], dict[str, Any]]:
    """Group and name of each variant, with its settings; those that are the base again are left out."""
    base = settings_of_base(benchmark)
    found = {(group, name): change for group, names in CHANGES.items() for name, change in names.items()}
    if benchmark != "split-mnist":
        # One head: there are no others to compete with. And 600 epochs are for the shorter of the two.
        found = {
            place: change
            for place, change in found.items()
            if "test_softmax" not in change and change.get("epochs") != 600
        }
    return {
        place: change
        for place, change in found.items()
        if place[0] == BASE or any(base[name] != value for name, value in change.items())
    }


def settings_of_base(benchmark: str) -> dict[str, Any]:
    return {**vars(vcl.configure(benchmark, recipe="paper").learner), **BASES[benchmark][1]}


def configs(benchmark: str, change: dict[str, Any], seeds: int) -> list[Any]:
    stream, base = BASES[benchmark]
    options = vcl.StreamOptions(**stream)
    return [
        vcl.configure(benchmark, recipe="paper", seed=seed, threads=1, stream=options, **{**base, **change})
        for seed in range(seeds)
    ]


def results(benchmark: str, change: dict[str, Any], seeds: int, out: Path) -> list[Result]:
    """Of every seed: those kept, and for the others runs."""
    found = []
    for config in configs(benchmark, change, seeds):
        result = find(config, filter(is_whole, kept_results(KEPT)))
        if result is None:
            (result,) = run_all([config], out, 1, watch=lambda *_: None)
            keep(result, KEPT / "ablations")
        found.append(result)
    return found


def table(rows: dict[tuple[str, str], Row]) -> str:
    """Accuracy, forgetting and the paired difference to the base, in the order of CHANGES."""
    lines = ["| | variant | accuracy (%) | against the base (points) | forgetting | calibration error | steps |"]
    lines.append("| --- | --- | ---: | ---: | ---: | ---: | ---: |")
    base = rows[BASE, BASE]
    for (group, name), one in rows.items():
        gap = difference_cell("average_accuracy", difference(one, base)) if one is not base else ""
        measures = [cell(one, measure) for measure in ("forgetting", "calibration_error", "steps")]
        lines.append(f"| {group} | {name} | {cell(one, 'average_accuracy')} | {gap} | {' | '.join(measures)} |")
    return "\n".join(lines) + "\n"


def figure(benchmark: str, rows: dict[tuple[str, str], Row]) -> bytes:
    """Accuracy of each variant, every seed a dot, a colour for each group; the base is the line."""
    drawn = canvas(7.0, 0.26 * len(rows) + 1.5, f"{benchmark}: one setting changed at a time")
    axes = drawn.subplots()
    groups = [*dict.fromkeys(group for group, _ in rows)]
    for place, ((group, name), one) in enumerate(rows.items()):
        colour = "#000000" if name == BASE else DISTINCT[groups.index(group) % (len(DISTINCT) - 1)]
        values = [100 * value for value in one.defined("average_accuracy")]
        axes.plot(values, [place] * len(values), "o", ms=3.5, alpha=0.6, mew=0, color=colour)
        axes.plot([sum(values) / len(values)], [place], "|", ms=11, mew=2, color=colour)
    axes.axvline(100 * (rows[BASE, BASE].average("average_accuracy") or 0.0), color="#9a9a9a", lw=0.8, ls=":")
    axes.set_yticks(range(len(rows)), [name for _, name in rows])
    axes.invert_yaxis()
    axes.set_xlabel("average accuracy after the last task (%)")
    tidy(axes, grid="x")
    caption(drawn, "A dot for each seed, a bar for their mean. Dotted: the base.")
    return saved(drawn, "png")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("benchmark", choices=BASES)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("runs/ablations"))
    asked = parser.parse_args()
    stream = vcl.build(asked.benchmark, vcl.StreamOptions(**BASES[asked.benchmark][0]), seed=0)
    network = vcl.configure(asked.benchmark, recipe="paper").learner.architecture
    rows = {}
    chosen = variants(asked.benchmark)
    for number, ((group, name), change) in enumerate(chosen.items()):
        print(f"{group}: {name}, {number + 1} of {len(chosen)}", file=sys.stderr, flush=True)
        rows[group, name] = row(name, results(asked.benchmark, change, asked.seeds, asked.out), stream.spec, network)
    head = f"# {asked.benchmark}: one setting changed at a time\n\nTest data, {asked.seeds} seeds.\n\n"
    folder = KEPT / "ablations"
    (folder / f"{asked.benchmark}.md").write_text(head + table(rows))
    (folder / f"{asked.benchmark}.png").write_bytes(figure(asked.benchmark, rows))
    print(head + table(rows))


if __name__ == "__main__":
    main()
