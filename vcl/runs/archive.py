"""Results kept as JSON, without their run folders: what one machine has run counts as run on another."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, cast

from vcl.benchmarks import StreamOptions
from vcl.errors import VclError
from vcl.files import write_atomically, writing
from vcl.methods import settings_of
from vcl.runs.config import RunConfig
from vcl.runs.legacy import remake
from vcl.runs.results import Result, TaskScores

NOT_SHOWN = {"run", "untrained_accuracy", "accuracy_before_learning"}
"""What no table is made of."""
DIGITS = 6
"""Decimals of the scores that are kept; accuracies keep all."""


def kept_results(folder: Path) -> list[Result]:
    """All results in JSON files below a folder: single ones, lists, and what `vcl show --json` prints."""
    return [one for path in sorted(folder.rglob("*.json")) for one in results_in(path)]


def results_in(path: Path) -> list[Result]:
    """The results in one file; other JSON has none."""
    try:
        document: Any = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise VclError(f"{path} cannot be read as JSON: {error}. Restore or remove it.") from None
    listed = document.get("runs", [document]) if isinstance(document, dict) else document
    if not isinstance(listed, list):
        return []
    return cast(list[Result], [one for one in listed if is_result(one)])


def is_result(value: Any) -> bool:
    """Whether a piece of JSON is a result: what was run, with which settings, and its accuracies."""
    if not (isinstance(value, dict) and {"benchmark", "method", "seed", "accuracy_matrix"} <= value.keys()):
        return False
    config = value.get("config")
    return isinstance(config, dict) and all(isinstance(config.get(part), dict) for part in ("stream", "learner"))


def is_whole(result: Result) -> bool:
    """Whether a result has all that tables show; those kept for their accuracies alone have less."""
    return Result.__required_keys__ - NOT_SHOWN <= result.keys()


def same(config: RunConfig, result: Result, without_effect: Sequence[str] = ()) -> bool:
    """Whether a result is of this configuration, but for the number of threads and settings without an effect."""
    if (config.benchmark, config.method, config.seed) != (result["benchmark"], result["method"], result["seed"]):
        return False
    try:
        if StreamOptions(**result["config"]["stream"]) != config.stream:
            return False
        learner = settings_of(remake({"method": result["method"], "settings": result["config"]["learner"]}))
    except (TypeError, VclError):
        return False  # of another version, with settings that this one does not have
    wanted = settings_of(config.learner)
    return all(learner[name] == value for name, value in wanted.items() if name not in without_effect)


def find(config: RunConfig, kept: Iterable[Result], without_effect: Sequence[str] = ()) -> Result | None:
    """The result of a configuration among those that are kept."""
    return next((result for result in kept if same(config, result, without_effect)), None)


def keep(result: Result, folder: Path) -> Path | None:
    """Write a result as JSON where `kept_results` finds it.

    One that is there already stays, since it may be quoted; its path is returned if it differs from this one.
    """
    path = folder / f"{result['run']}.json"
    if path.exists():
        there = results_in(path)
        return None if there and there[0].get("state_sha256") == result["state_sha256"] else path
    scores = [[rounded(one) for one in row] for row in result["scores"]]
    with writing(path):
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(path, (json.dumps({**result, "scores": scores}) + "\n").encode())
    return None


def rounded(scores: TaskScores) -> dict[str, float]:
    return {name: round(cast(float, value), DIGITS) for name, value in scores.items()}
