"""The same search for every method: as many trials, over declared ranges, pruned early, on validation data.

    .venv/bin/python bench/equal_search.py split-mnist
    .venv/bin/python bench/equal_search.py permuted-mnist --methods ewc,laplace --num-tasks 5 --finalists 2

bench/spaces.toml declares what is varied for each method. Optuna's sampler chooses; the first trial has the settings
of the recipe `fast` at that time, so that the best is never worse on validation data. After five trials, one that
lies below the median of the others after some task is given up. The seed, 100, is one that no table of results uses.
With --finalists 2 the best two trials and the recipe are run on all tasks of the stream as well, since what is best
after the first tasks need not be best after all. Runs and the searches' storage are kept in the folder that --out
names, so that the same command continues; results/search/equal gets every trial and a table of the best, and what
is there already is not searched again.
"""

import argparse
import json
import sys
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

from vcl.benchmarks import STREAMS
from vcl.errors import VclError, choose
from vcl.files import write_atomically
from vcl.methods import METHODS
from vcl.runs import sweep
from vcl.runs.plans import Candidate, Plan, best_first, judged, plan_from
from vcl.runs.tuning import search

SPACES = Path(__file__).parent / "spaces.toml"
OUTCOMES = Path(__file__).parent.parent / "results" / "search" / "equal"
SEED = 100


def plan_for(benchmark: str, method: str, trials: int, num_tasks: int | None) -> Plan:
    """The search of one method."""
    spaces = tomllib.loads(SPACES.read_text())[STREAMS[benchmark].family]
    space = spaces[choose("method", method, spaces)]
    looked_for = {"trials": trials, "pruner": "median", "recipe_first": True, "space": space}
    document: dict[str, Any] = {"benchmark": benchmark, "method": method, "first_seed": SEED, "search": looked_for}
    if num_tasks:
        document["stream"] = {"num_tasks": num_tasks}
    return plan_from(document, "-".join(["equal", benchmark, method, *([str(num_tasks)] if num_tasks else [])]))


def as_document(plan: Plan, found: list[Candidate]) -> dict[str, Any]:
    """All that is worth keeping of a search, in the order of its trials; the first is the recipe."""
    return {
        "benchmark": plan.benchmark,
        "method": plan.method,
        "num_tasks": plan.stream.num_tasks,
        "validation": plan.stream.validation,
        "seed": plan.first_seed,
        "space": plan.search.space if plan.search else {},
        "trials": [{"settings": c.settings, "accuracy": c.accuracy, "note": c.note} for c in found],
    }


def kept_search(plan: Plan, path: Path) -> dict[str, Any] | None:
    """This search, if it is kept already with as many trials."""
    if not path.exists():
        return None
    kept, asked = json.loads(path.read_text()), as_document(plan, [])
    same = all(kept.get(name) == value for name, value in asked.items() if name != "trials")
    return kept if plan.search and same and len(kept["trials"]) >= plan.search.trials else None


def candidates_of(document: dict[str, Any]) -> list[Candidate]:
    """The trials of a search that is kept."""
    return [Candidate(t["settings"], () if t["accuracy"] is None else (t["accuracy"],)) for t in document["trials"]]


def finals(plan: Plan, trials: list[Candidate], count: int, out: Path) -> list[dict[str, Any]]:
    """The recipe, and the best `count` other trials, on all tasks of the stream."""
    recipe, *others = trials
    entrants = [recipe, *(c for c in best_first(others)[:count] if c.accuracy is not None)]
    whole = replace(plan, stream=replace(plan.stream, num_tasks=None))
    configs = [config for one in entrants for config in whole.configs(one.settings)]
    outcomes = sweep.attempt_all(configs, out, 1, watch=lambda *_: None)
    for config, outcome in zip(configs, outcomes, strict=True):
        if isinstance(outcome, VclError):
            raise VclError(f"The final run {config.name} failed: {outcome} The same command tries it again.")
    return [
        {"settings": one.settings, "accuracy": judged(one.settings, [outcome]).accuracy}
        for one, outcome in zip(entrants, outcomes, strict=True)
    ]


def summary(documents: list[dict[str, Any]]) -> str:
    """A line for each method: the recipe when it was searched and the best of its trials, in per cent.

    The last column has the finals: accuracies after all tasks, of the recipe and then of the best trials.
    """
    lines = ["| method | tasks | the recipe then | best | settings of the best | trials | given up | on all tasks |"]
    lines.append("| --- | ---: | ---: | ---: | --- | ---: | ---: | --- |")
    for document in documents:
        trials = candidates_of(document)
        best, recipe = best_first(trials)[0], trials[0]
        chosen = "the recipe" if best.settings == recipe.settings else readable(best.settings)
        accuracies = [percent(one.accuracy) for one in (recipe, best)]
        given_up = sum(t["note"] == "PRUNED" for t in document["trials"])
        cells = [document["method"], str(document["num_tasks"] or "all"), *accuracies, chosen]
        entrants = [in_the_finals(one, named=(recipe.settings, best.settings)) for one in document.get("finals", [])]
        lines.append(f"| {' | '.join(cells)} | {len(trials)} | {given_up} | {', '.join(entrants)} |")
    return "\n".join(lines) + "\n"


def report(benchmark: str) -> str:
    """The table of all searches that are kept of a benchmark."""
    kept = [json.loads(path.read_text()) for path in sorted(OUTCOMES.glob(f"{benchmark}-*.json"))]
    return f"# Equal searches on {benchmark}: accuracy on validation data (%), seed {SEED}\n\n{summary(kept)}"


def keep(path: Path, document: dict[str, Any]) -> None:
    write_atomically(path, (json.dumps(document, indent=1) + "\n").encode())


def in_the_finals(entrant: dict[str, Any], named: tuple[dict[str, Any], ...]) -> str:
    """Its accuracy on all tasks, and its settings unless they are named elsewhere in the row."""
    settings = entrant["settings"]
    return percent(entrant["accuracy"]) + ("" if settings in named else f" ({readable(settings)})")


def percent(accuracy: float | None) -> str:
    return "–" if accuracy is None else f"{100 * accuracy:.2f}"


def readable(settings: dict[str, Any]) -> str:
    return ", ".join(
        f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}" for name, value in settings.items()
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "benchmark", choices=[name for name, one in STREAMS.items() if one.family in ("split", "permuted")]
    )
    parser.add_argument("--methods", default="all", help="names with commas between, or all")
    parser.add_argument("--trials", type=int, default=15)
    parser.add_argument("--num-tasks", type=int, help="the first tasks only")
    parser.add_argument("--finalists", type=int, default=0, help="how many of the best are run on all tasks")
    parser.add_argument("--out", type=Path, default=Path("runs/search"))
    asked = parser.parse_args()
    if asked.finalists < 0:
        parser.error(f"--finalists must not be negative, but it is {asked.finalists}.")
    names = list(METHODS) if asked.methods == "all" else asked.methods.split(",")
    try:
        plans = [plan_for(asked.benchmark, method, asked.trials, asked.num_tasks) for method in names]
    except VclError as error:
        parser.error(str(error))
    OUTCOMES.mkdir(parents=True, exist_ok=True)
    for number, (method, plan) in enumerate(zip(names, plans, strict=True)):
        print(f"{method}: search {number + 1} of {len(names)}", file=sys.stderr, flush=True)

        def attempt(configs: Any, prune: Any) -> Any:
            return sweep.attempt_all(configs, asked.out, 1, watch=lambda *_: None, prune=prune)

        path = OUTCOMES / f"{asked.benchmark}-{method}.json"
        document = kept_search(plan, path) or as_document(plan, search(plan, asked.out, 1, attempt))
        keep(path, document)
        if asked.finalists and not document.get("finals"):
            try:
                document["finals"] = finals(plan, candidates_of(document), asked.finalists, asked.out)
            except VclError as error:
                sys.exit(f"{method}: {error}")
            keep(path, document)
        text = report(asked.benchmark)
        (OUTCOMES / f"{asked.benchmark}.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
