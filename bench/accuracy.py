"""Wall time to the paper's accuracy, by recipe and method, from results that are kept.

    .venv/bin/python bench/accuracy.py
    .venv/bin/python bench/accuracy.py RESULTS_FOLDER

For each configuration in `results/` (JSON of `vcl show --json` or `vcl reproduce`): the training time, and whether
the average accuracy after the last task is the paper's, 98.5 % on split MNIST and 93 % on permuted MNIST.
"""

import sys
from pathlib import Path
from statistics import mean
from typing import Any

from measure import write

from vcl.runs.archive import kept_results
from vcl.runs.reproduction import accuracy

WANTED = {"split-mnist": 0.985, "permuted-mnist": 0.93}


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent.parent / "results"
    groups: dict[tuple[str, str, str, int], list[Any]] = {}
    for result in kept_results(folder):
        config = result["config"]
        if result["benchmark"] in WANTED and not any(config["stream"].values()):
            place = (result["benchmark"], result["method"], config["recipe"], config["learner"].get("coreset", 0))
            groups.setdefault(place, []).append(result)
    rows = [
        {
            "benchmark": benchmark,
            "method": method,
            "recipe": recipe,
            "coreset": coreset,
            "seeds": len(results),
            "accuracy (%)": accuracy(results),
            "training (s)": round(mean(result["train_seconds"] for result in results)),
            "reached": "yes" if mean(r["average_accuracy"] for r in results) >= WANTED[benchmark] else "no",
        }
        for (benchmark, method, recipe, coreset), results in sorted(groups.items())
    ]
    write("accuracy", "Training time and the paper's accuracy", rows)


if __name__ == "__main__":
    main()
