"""Run folders: configuration, metrics as they come, checkpoints, the result. Atomic, locked, checked.

run.json        what was asked for, with versions and the command
metrics.jsonl   one event a line: objectives per epoch, scores after each stage
checkpoints/    after-SS.safetensors: the learner's state after a stage, kept for every task
                during-SS-PHASE-EEEEEE.safetensors: inside a stage, the last two
trace/          SS-EEEEEE.safetensors: a snapshot of the units during a stage, if asked for
result.json     when the run is complete
"""

import json
import re
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxtyping import PyTree

from vcl.checkpoints import DamagedCheckpoint, dump_tree, load_tree
from vcl.errors import VclError
from vcl.files import locked, write_atomically, writing
from vcl.runs.results import Record, Result

FORMAT = 2
KEPT_DURING = 2

Say = Callable[[str], None]


@dataclass(frozen=True)
class RunFolder:
    """One run on disk."""

    path: Path

    @staticmethod
    def create(path: Path, record: Record) -> "RunFolder":
        """A new folder that holds `record`, what was asked for."""
        folder = RunFolder(path)
        with writing(path):
            folder.checkpoints.mkdir(parents=True, exist_ok=True)
            write_atomically(path / "run.json", to_json({"format": FORMAT, **record}))
        return folder

    @staticmethod
    def open(path: Path) -> "RunFolder":
        """A folder that exists, checked to be one that this version can read."""
        folder = RunFolder(path)
        record = folder.record
        number = record.get("format")
        if not isinstance(number, int):
            raise VclError(f"{path} is not a run folder: its run.json is not one that vcl wrote, it has no format.")
        if number > FORMAT:
            raise VclError(
                f"The run in {path} was written by vcl {record.get('version', '?')}, in format {number}; this "
                f"version reads up to format {FORMAT}. Install that version of vcl, or a later one, to use it."
            )
        return folder

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def trace(self) -> Path:
        return self.path / "trace"

    @property
    def record(self) -> Record:
        return read_json(self.path / "run.json", f"{self.path} is not a run folder")

    @property
    def result(self) -> Result | None:
        path = self.path / "result.json"
        return read_json(path, f"{path} is missing") if path.exists() else None

    def write_result(self, result: Result) -> None:
        with writing(self.path):
            write_atomically(self.path / "result.json", to_json(result))

    def lock(self) -> AbstractContextManager[None]:
        """One process at a time; a second one is refused."""

        def refuse() -> None:
            raise VclError(
                f"Another process is at work on the run in {self.path}. Wait for it to end, or stop it; "
                "nothing was changed."
            )

        path = self.path / "lock"
        with writing(path):
            path.touch()
        return locked(path, refuse)

    def clean(self) -> None:
        """Remove what a killed process left half-written."""
        for path in (*self.path.glob(".*"), *self.checkpoints.glob(".*"), *self.trace.glob(".*")):
            path.unlink(missing_ok=True)

    # Metrics

    def events(self) -> list[dict[str, Any]]:
        """All complete events; a line that a killed process left half-written does not count."""
        path = self.path / "metrics.jsonl"
        if not path.exists():
            return []
        try:
            return [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
        except (OSError, ValueError) as error:
            raise VclError(f"{path} cannot be read: {error}. Restore it, or run anew with --fresh.") from None

    def append_event(self, event: dict[str, Any]) -> None:
        with writing(self.path), (self.path / "metrics.jsonl").open("a") as out:
            out.write(json.dumps(event) + "\n")

    def replace_events(self, events: Iterable[dict[str, Any]]) -> None:
        lines = "".join(json.dumps(event) + "\n" for event in events)
        with writing(self.path):
            write_atomically(self.path / "metrics.jsonl", lines.encode())

    # Checkpoints

    def save_after(self, stage: int, state: PyTree, facts: dict[str, Any], keep: Iterable[int]) -> None:
        """The state after `stage` (from 1). Of the earlier ones, those in `keep` stay, and the newest but one."""
        self._save(f"after-{stage:04d}", state, facts)
        keep = {*keep, stage, stage - 1}
        for path, (number,) in self._found(r"after-(\d+)"):
            if int(number) not in keep:
                path.unlink(missing_ok=True)
        self.forget_during(upto=stage)

    def save_during(self, stage: int, phase: str, epoch: int, carry: PyTree, facts: dict[str, Any]) -> None:
        """A checkpoint inside a stage; the last two of each phase are kept."""
        self._save(f"during-{stage:04d}-{phase}-{epoch:06d}", carry, facts)
        for path, _ in self._during(stage, phase)[:-KEPT_DURING]:
            path.unlink(missing_ok=True)

    def forget_during(self, upto: int) -> None:
        """Remove checkpoints inside stages that are over."""
        for path, (number, *_) in self._found(r"during-(\d+)-.*"):
            if int(number) <= upto:
                path.unlink(missing_ok=True)

    def newest_after(self, like: PyTree, say: Say) -> tuple[int, PyTree, dict[str, Any]] | None:
        """The latest good state: number of the stage, state, facts. Damaged ones are skipped with a warning."""
        found = [(path, int(number)) for path, (number,) in self._found(r"after-(\d+)")]
        return _newest_good(found, like, say)

    def newest_during(
        self, stage: int, phase: str, like: PyTree, say: Say
    ) -> tuple[int, PyTree, dict[str, Any]] | None:
        """The latest good checkpoint of a phase: epochs done, what was carried along, facts."""
        return _newest_good(self._during(stage, phase), like, say)

    def state_after(self, stage: int, like: PyTree) -> PyTree:
        """The state after one stage (from 1), for analysis and prediction."""
        return self.read_after(stage, like)[0]

    def read_after(self, stage: int, like: PyTree) -> tuple[PyTree, dict[str, Any]]:
        """The state after one stage (from 1), and the facts saved with it."""
        path = self.path_after(stage)
        if not path.exists():
            raise VclError(f"The run in {self.path} has no checkpoint after stage {stage}. It has: {self.stages()}.")
        try:
            return load_tree(path, like)
        except DamagedCheckpoint as damage:
            raise VclError(
                f"{damage} To make it again, remove {self.path / 'result.json'} if it is there, then: "
                f"vcl resume {self.path}"
            ) from None

    def path_after(self, stage: int) -> Path:
        return self.checkpoints / f"after-{stage:04d}.safetensors"

    def stages(self) -> list[int]:
        """The stages with a checkpoint after them."""
        return [int(number) for _, (number,) in self._found(r"after-(\d+)")]

    # Trace

    def save_snapshot(self, stage: int, epoch: int, seen: PyTree) -> None:
        """What was seen after `epoch` epochs of `stage` (from 1)."""
        path = self._snapshot_path(stage, epoch)
        with writing(path):
            self.trace.mkdir(exist_ok=True)
            write_atomically(path, dump_tree(seen, {}))

    def snapshots(self) -> list[tuple[int, int]]:
        """The stage and the epoch of every snapshot, in order."""
        return [(int(stage), int(epoch)) for _, (stage, epoch) in _matching(self.trace, r"(\d+)-(\d+)")]

    def snapshot(self, stage: int, epoch: int, like: PyTree) -> PyTree:
        """Read back what `save_snapshot` wrote, into the structure of `like`."""
        try:
            return load_tree(self._snapshot_path(stage, epoch), like)[0]
        except DamagedCheckpoint as damage:
            raise VclError(
                f"{damage} It is a part of this run's trace: remove the file to do without it, or run anew with "
                "--fresh --trace."
            ) from None

    def _snapshot_path(self, stage: int, epoch: int) -> Path:
        return self.trace / f"{stage:04d}-{epoch:06d}.safetensors"

    def _save(self, name: str, tree: PyTree, facts: dict[str, Any]) -> None:
        path = self.checkpoints / f"{name}.safetensors"
        with writing(path):
            write_atomically(path, dump_tree(tree, facts))

    def _during(self, stage: int, phase: str) -> list[tuple[Path, int]]:
        return [(path, int(e)) for path, (e,) in self._found(rf"during-{stage:04d}-{re.escape(phase)}-(\d+)")]

    def _found(self, pattern: str) -> list[tuple[Path, tuple[str, ...]]]:
        return _matching(self.checkpoints, pattern)


def _matching(folder: Path, pattern: str) -> list[tuple[Path, tuple[str, ...]]]:
    matches = [(path, re.fullmatch(pattern + r"\.safetensors", path.name)) for path in sorted(folder.glob("*"))]
    return [(path, match.groups()) for path, match in matches if match]


def _newest_good(found: list[tuple[Path, int]], like: PyTree, say: Say) -> tuple[int, PyTree, dict[str, Any]] | None:
    for path, number in reversed(found):
        try:
            tree, facts = load_tree(path, like)
        except DamagedCheckpoint as damage:
            say(f"{damage} The one before it is used.")
        else:
            return number, tree, facts
    return None


def stored_runs(root: Path) -> list[RunFolder]:
    """All run folders directly below `root`."""
    # A hidden folder is one that is still being made.
    return [RunFolder(path.parent) for path in sorted(root.glob("[!.]*/run.json"))]


def to_json(value: Any) -> bytes:
    return (json.dumps(value, indent=2) + "\n").encode()


def read_json(path: Path, otherwise: str) -> Any:
    try:
        value = json.loads(path.read_text())
    except (FileNotFoundError, NotADirectoryError):
        raise VclError(f"{otherwise}: there is no {path.name} in it. `vcl runs` lists the runs there are.") from None
    except (OSError, ValueError) as error:
        raise VclError(f"{path} cannot be read: {error}. Restore it, or start the run again elsewhere.") from None
    if not isinstance(value, dict):
        raise VclError(f"{path} does not hold a JSON object. Restore it, or start the run again elsewhere.")
    return value
