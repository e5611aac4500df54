"""Run folders made from run folders: each is whole or absent, and continues like any other run."""

import shlex
import shutil
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from vcl import learning
from vcl.benchmarks import build
from vcl.core import State
from vcl.errors import VclError
from vcl.files import writing
from vcl.runs.folder import RunFolder
from vcl.runs.results import Record
from vcl.runs.stored import StoredRun


def derive(
    run: StoredRun,
    out: Path,
    stage: int,
    change: Callable[[State], State],
    *,
    changes: dict[str, Any],
    facts: dict[str, Any],
    untrained_again: bool = False,
) -> StoredRun:
    """Write to `out` a run like `run` up to `stage`, with every state changed; it continues where that one was.

    `changes` replace entries of the record, `facts` are told of its origin.
    """
    if out.exists():
        raise VclError(f"{out} exists already, and nothing is overwritten. {_how_to_continue(run, out)}")
    command = shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])
    origin = {"run": run.name, "stage": stage, "command": command, **facts}
    if earlier := run.record.get("origin"):
        origin["origin"] = earlier
    like = learning.template(run.learner, run.spec)
    read = {number: run.folder.read_after(number, like) for number in run.folder.stages() if number <= stage}
    # Under another name until it is whole: a part of it would begin to learn from the first task.
    partial = out.with_name(f".{out.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    record: Record = {**run.record, **changes, "origin": origin}  # type: ignore[typeddict-item]
    copy = RunFolder.create(partial, record)
    # What the changed network would answer differently is asked again when the run continues.
    copy.replace_events(
        event
        for event in run.folder.events()
        if (event["event"], event["stage"]) != ("evaluation", stage - 1)
        and not (untrained_again and event["event"] == "untrained")
    )
    for number, (state, saved) in read.items():
        copy.save_after(number, change(state), saved, keep=read)
    with writing(out):
        partial.rename(out)
    return StoredRun(RunFolder(out))


def _how_to_continue(run: StoredRun, out: Path) -> str:
    """What to do about a folder that is there: it may be what a killed command had written."""
    elsewhere = "Choose another place with --out."
    try:
        other = StoredRun.open(out)
        complete = other.folder.result is not None
    except VclError:
        return elsewhere
    if other.record.get("origin", {}).get("run") != run.name:
        return elsewhere
    if complete:
        return f"It was made from this run before: vcl show {out}. {elsewhere}"
    return f"It was made from this run by a command that did not end: vcl resume {out} continues it. {elsewhere}"


def extend(run: StoredRun, num_tasks: int, out: Path | None = None, data_dir: Path | None = None) -> StoredRun:
    """A run with further tasks of the same stream, ready to continue (`vcl.resume`).

    Its folder is by default `extended_path`.
    """
    if num_tasks <= run.spec.num_tasks:
        raise VclError(
            f"The run in {run.path} has {run.spec.num_tasks} tasks already, so --num-tasks must be larger, but "
            f"it is {num_tasks}."
        )
    stage = run.last_stage
    if stage < len(run.record["stages"]):
        raise VclError(f"The run in {run.path} is not complete. Continue it first: vcl resume {run.path}")
    config = replace(run.config, stream=replace(run.config.stream, num_tasks=num_tasks))
    stream = build(config.benchmark, config.stream, config.seed, data_dir)
    out = out or extended_path(run, num_tasks)
    before = learning.Snapshot(run.learner, run.spec, config.seed, None, stage)

    def change(state: State) -> State:
        return learning.grow(replace(before, state=state), stream.spec).state

    changes = {
        "config": config.settings,
        "spec": asdict(stream.spec),
        "task_names": list(stream.task_names),
        "stages": list(stream.stages),
    }
    return derive(
        run, out, stage, change, changes=changes, facts={"num_tasks": run.spec.num_tasks}, untrained_again=True
    )


def extended_path(run: StoredRun, num_tasks: int) -> Path:
    """The folder, beside that of `run`, that a run with `num_tasks` tasks has: its network is the same.

    A network that was pruned or widened on the way is another, so that its folder has a name of its own.
    """
    path = run.path.resolve()
    origin = run.record.get("origin")
    while isinstance(origin, dict):
        if "num_tasks" not in origin:
            return path.with_name(f"{path.name}-extended-{num_tasks}")
        origin = origin.get("origin")
    return path.with_name(replace(run.config, stream=replace(run.config.stream, num_tasks=num_tasks)).name)
