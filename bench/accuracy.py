"""Wall time to the paper's accuracy, by recipe and method, from results that are kept.

    .venv/bin/python bench/accuracy.py
    .venv/bin/python bench/accuracy.py RESULTS_FOLDER

For each recipe that has results in `results/` (JSON of `vcl show --json`, `vcl compare` or `vcl reproduce`): the
training time, and whether the average accuracy after the last task is the paper's, 98.5 % on split MNIST and 93 % on
permuted MNIST. Only results with all settings of a recipe count; the coreset's size and the generator of noise may
differ, and have rows of their own.
"""

import sys
from pathlib import Path
from statistics import mean
from typing import Any

from measure import write

from vcl.methods import settings_of
from vcl.runs.archive import kept_results, same
from vcl.runs.config import configure
from vcl.runs.reproduction import WITHOUT_EFFECT, accuracy
from vcl.runs.results import Result

WANTED = {"split-mnist": 0.985, "permuted-mnist": 0.93}


def follows_its_recipe(result: Result) -> bool:
    """Whether nothing but the coreset departs from the recipe that the result names."""
    kept = {"coreset": result["config"]["learner"]["coreset"]} if "coreset" in result["config"]["learner"] else {}
    recipe = configure(
        result["benchmark"], result["method"], recipe=result["config"]["recipe"], seed=result["seed"], **kept
    )
    return same(recipe, result, WITHOUT_EFFECT)


def generator(result: Result) -> str:
    """The generator of noise; results from before there was a choice have threefry."""
    has_one = "noise" in settings_of(configure(result["benchmark"], result["method"]).learner)
    return result["config"]["learner"].get("noise", "threefry") if has_one else ""


def row_of(
    benchmark: str, method: str, recipe: str, coreset: int, noise: str, results: list[Result]
) -> dict[str, Any]:
    """What the seeds of one recipe have on average."""
    on_processor = [result["cpu_seconds"] for result in results if result.get("cpu_seconds")]
    return {
        "benchmark": benchmark,
        "method": method,
        "recipe": recipe,
        "coreset": coreset,
        "noise": noise,
        "seeds": len(results),
        "accuracy (%)": accuracy(results),
        "training (s)": round(mean(result["train_seconds"] for result in results)),
        "CPU (s)": round(mean(on_processor)) if on_processor else "",
        "reached": "yes" if mean(r["average_accuracy"] for r in results) >= WANTED[benchmark] else "no",
    }


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent.parent / "results"
    groups: dict[tuple[str, str, str, int, str], dict[int, Result]] = {}
    for result in kept_results(folder):
        learner = result["config"]["learner"]
        if result["benchmark"] in WANTED and follows_its_recipe(result):
            names = (result["benchmark"], result["method"], result["config"]["recipe"])
            place = (*names, learner.get("coreset", 0), generator(result))
            # Several files may hold the same run, or a repetition of it on another machine.
            groups.setdefault(place, {}).setdefault(result["seed"], result)
    rows = [row_of(*place, list(by_seed.values())) for place, by_seed in sorted(groups.items())]
    write("accuracy", "Training time and the paper's accuracy", rows)


if __name__ == "__main__":
    main()
