"""Run folders: configuration, metrics as they come, checkpoints, the result. Atomic, locked, checked.

Every file has a checksum: JSON objects inside themselves, metrics from line to line, arrays in their facts, which
also name the stage and the fingerprint of the configuration. The result has that of the last line of the metrics.

run.json        what was asked for, with versions and the command
metrics.jsonl   one event a line: objectives per epoch, scores after each stage
checkpoints/    after-SS.safetensors: the learner's state after a stage, kept for every task
                during-SS-PHASE-EEEEEE.safetensors: inside a stage, the last two
trace/          SS-EEEEEE.safetensors: a snapshot of the units during a stage, if asked for
result.json     when the run is complete
"""

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxtyping import PyTree

from vcl.checkpoints import DamagedCheckpoint, dump_tree, load_tree
from vcl.errors import VclError
from vcl.files import append_durably, is_temporary, locked, sync_folder, write_atomically, writing
from vcl.runs import sealed
from vcl.runs.results import Record, Result, check_event, check_record, check_result

FORMAT = 3
CHECKED = 3
"""The first format whose files all have checksums."""
KEPT_DURING = 2
DECISIVE = ("benchmark", "method", "seed", "config", "spec", "stages")
"""What the fingerprint of a configuration is taken of."""
RESTORE = "Restore it, or start the run again elsewhere."

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
            write_atomically(path / "run.json", sealed.seal({"format": FORMAT, **record}))
        return folder

    @staticmethod
    def open(path: Path) -> "RunFolder":
        """A folder that exists, checked to be one that this version can read."""
        folder = RunFolder(path)
        _ = folder.record
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
        path = self.path / "run.json"
        try:
            record, has_checksum = sealed.unseal(path, remedy=RESTORE)
        except (FileNotFoundError, NotADirectoryError):
            raise VclError(
                f"{self.path} is not a run folder: there is no run.json in it. `vcl runs` lists the runs there are."
            ) from None
        number = record.get("format")
        if not isinstance(number, int):
            raise VclError(
                f"{self.path} is not a run folder: its run.json is not one that vcl wrote, it has no format."
            )
        if number > FORMAT:
            raise VclError(
                f"The run in {self.path} was written by vcl {record.get('version', '?')}, in format {number}; this "
                f"version reads up to format {FORMAT}. Install that version of vcl, or a later one, to use it."
            )
        if number >= CHECKED and not has_checksum:
            raise sealed.Damaged(f"{path} has lost its checksum, so it may have been changed. {RESTORE}")
        return check_record(record, path)

    @property
    def is_checked(self) -> bool:
        """Whether all files of this run must have checksums."""
        return self.record["format"] >= CHECKED

    @property
    def fingerprint(self) -> str:
        """Differs wherever the configuration does. A checkpoint names it, and is of no use to another."""
        record: dict[str, Any] = {**self.record}
        return sealed.digest({name: record.get(name) for name in DECISIVE})

    @property
    def result(self) -> Result | None:
        found = self._sealed_result()
        return found[0] if found else None

    def _sealed_result(self) -> tuple[Result, str | None] | None:
        """The result, and the checksum that ends the metrics it was computed from."""
        path = self.path / "result.json"
        remedy = f"Remove it, then `vcl resume {self.path}` makes it again from the checkpoints."
        try:
            result, has_checksum = sealed.unseal(path, remedy=remedy)
        except (FileNotFoundError, NotADirectoryError):
            return None
        if self.is_checked and not has_checksum:
            raise sealed.Damaged(f"{path} has lost its checksum, so it may have been changed. {remedy}")
        metrics, fingerprint = result.pop("metrics_sha256", None), result.pop("fingerprint", None)
        if fingerprint not in ((self.fingerprint,) if self.is_checked else (self.fingerprint, None)):
            raise sealed.Damaged(
                f"{path} is the result of another configuration than that of run.json: one of them was copied here "
                "from another run. Restore what was changed."
            )
        return check_result(result, path), metrics

    def write_result(self, result: Result) -> None:
        with writing(self.path):
            _, last = self._chain()
            about = {"metrics_sha256": last, "fingerprint": self.fingerprint}
            write_atomically(self.path / "result.json", sealed.seal({**result, **about}))

    def lock(self) -> AbstractContextManager[None]:
        """One process at a time; a second one is refused."""

        def refuse() -> None:
            raise VclError(
                f"Another process is at work on the run in {self.path}. Wait for it to end, or stop it; "
                "nothing was changed."
            )

        return self._lock(self.path / "lock", refuse)

    @contextmanager
    def _lock(self, path: Path, refuse: Callable[[], None]) -> Iterator[None]:
        with ExitStack() as stack:
            with writing(path):
                stack.enter_context(locked(path, refuse))
            yield

    def clean(self) -> None:
        """Remove what a killed process left half-written, and nothing else."""
        for folder in (self.path, self.checkpoints, self.trace):
            for path in folder.glob(".*"):
                if is_temporary(path.name):
                    path.unlink(missing_ok=True)

    # Metrics

    def events(self) -> list[dict[str, Any]]:
        """All complete events; a line that a killed process left half-written does not count."""
        # In this order: a run may end while it is read, and then has lines that were not there a moment ago.
        complete = self._sealed_result()
        events, last = self._chain()
        if complete and complete[1] not in (None, last):
            raise sealed.Damaged(
                f"{self.path / 'metrics.jsonl'} is not the one that the result was computed from: lines were lost. "
                f"{self._remedy()}"
            )
        return events

    def intact_events(self, say: Say) -> list[dict[str, Any]]:
        """The events up to the first damage, which is told: what is missing can be measured again."""
        events, _, damage = self._read_chain()
        if damage:
            say(f"{damage} What it told of scores is measured again from the checkpoints.")
        return events

    def _remedy(self) -> str:
        return (
            f"To measure it again from the checkpoints, remove {self.path / 'result.json'} if it is there, then: "
            f"vcl resume {self.path}"
        )

    def _read_chain(self) -> tuple[list[dict[str, Any]], str, sealed.Damaged | None]:
        return sealed.unchained(
            self.path / "metrics.jsonl",
            start=self._start,
            required=self.is_checked,
            check=check_event,
            remedy=self._remedy(),
        )

    @property
    def _start(self) -> str:
        """What the first line of the metrics follows: those of another run do not."""
        return self.fingerprint[: sealed.LENGTH]

    def _chain(self) -> tuple[list[dict[str, Any]], str]:
        """The events, and the checksum of the last."""
        events, last, damage = self._read_chain()
        if damage:
            raise damage
        return events, last

    def append_event(self, event: dict[str, Any]) -> None:
        with writing(self.path):
            last = sealed.last_link(self.path / "metrics.jsonl") or self._start
            lines, _ = sealed.chained([event], last)
            append_durably(self.path / "metrics.jsonl", lines)

    def replace_events(self, events: Iterable[dict[str, Any]]) -> None:
        with writing(self.path):
            write_atomically(self.path / "metrics.jsonl", sealed.chained(events, self._start)[0])

    # Checkpoints

    def save_after(self, stage: int, state: PyTree, facts: dict[str, Any], keep: Iterable[int]) -> None:
        """The state after `stage` (from 1). Of the earlier ones, those in `keep` stay, and the newest but one."""
        self._save(f"after-{stage:04d}", state, {**facts, "stage": stage})
        keep = {*keep, stage, stage - 1}
        for path, (number,) in self._found(r"after-(\d+)"):
            if int(number) not in keep:
                path.unlink(missing_ok=True)
        self.forget_during(upto=stage)

    def save_during(self, stage: int, phase: str, epoch: int, carry: PyTree, facts: dict[str, Any]) -> None:
        """A checkpoint inside a stage; the last two of each phase are kept."""
        about = {"stage": stage, "phase": phase, "epoch": epoch}
        self._save(f"during-{stage:04d}-{phase}-{epoch:06d}", carry, {**facts, **about})
        for path, _ in self._during(stage, phase)[:-KEPT_DURING]:
            path.unlink(missing_ok=True)

    def forget_during(self, upto: int) -> None:
        """Remove checkpoints inside stages that are over."""
        for path, (number, *_) in self._found(r"during-(\d+)-.*"):
            if int(number) <= upto:
                path.unlink(missing_ok=True)

    def newest_after(self, like: PyTree, say: Say) -> tuple[int, PyTree, dict[str, Any]] | None:
        """The latest good state: number of the stage, state, facts. Damaged ones are skipped with a warning."""
        found = [(self.path_after(stage), stage, {"stage": stage}) for stage in self.stages()]
        return self._newest_good(found, like, say)

    def newest_during(
        self, stage: int, phase: str, like: PyTree, say: Say
    ) -> tuple[int, PyTree, dict[str, Any]] | None:
        """The latest good checkpoint of a phase: epochs done, what was carried along, facts."""
        about = {"stage": stage, "phase": phase}
        found = [(path, epoch, {**about, "epoch": epoch}) for path, epoch in self._during(stage, phase)]
        return self._newest_good(found, like, say)

    def state_after(self, stage: int, like: PyTree) -> PyTree:
        """The state after one stage (from 1), for analysis and prediction."""
        return self.read_after(stage, like)[0]

    def read_after(self, stage: int, like: PyTree) -> tuple[PyTree, dict[str, Any]]:
        """The state after one stage (from 1), and the facts saved with it."""
        path = self.path_after(stage)
        if not path.exists():
            raise VclError(f"The run in {self.path} has no checkpoint after stage {stage}. It has: {self.stages()}.")
        try:
            return self._load(path, like, {"stage": stage})
        except DamagedCheckpoint as damage:
            raise VclError(
                f"{damage} To make it again, remove {self.path / 'result.json'} if it is there, then: "
                f"vcl resume {self.path}"
            ) from None

    def path_after(self, stage: int) -> Path:
        return self.checkpoints / f"after-{stage:04d}.safetensors"

    def stages(self) -> list[int]:
        """The stages with a checkpoint after them."""
        found = [int(number) for _, (number,) in self._found(r"after-(\d+)")]
        last = len(self.record.get("stages") or found)
        if beyond := [stage for stage in found if "stages" in self.record and stage > last]:
            raise VclError(
                f"{self.path_after(beyond[0])} is no checkpoint of this run, which has {last} stages. Remove it, or "
                "move it to where it belongs."
            )
        return found

    # Trace

    def begin_trace(self) -> None:
        """From here on the run is one with a trace, also if it is killed before the first snapshot."""
        with writing(self.trace):
            self.trace.mkdir(exist_ok=True)
            sync_folder(self.path)

    @property
    def is_traced(self) -> bool:
        return self.trace.is_dir()

    def save_snapshot(self, stage: int, epoch: int, seen: PyTree) -> None:
        """What was seen after `epoch` epochs of `stage` (from 1)."""
        self.begin_trace()
        self._save_to(self._snapshot_path(stage, epoch), seen, {"stage": stage, "epoch": epoch})

    def snapshots(self) -> list[tuple[int, int]]:
        """The stage and the epoch of every snapshot, in order."""
        return [(int(stage), int(epoch)) for _, (stage, epoch) in _matching(self.trace, r"(\d+)-(\d+)")]

    def snapshot(self, stage: int, epoch: int, like: PyTree) -> PyTree:
        """Read back what `save_snapshot` wrote, into the structure of `like`."""
        try:
            return self._load(self._snapshot_path(stage, epoch), like, {"stage": stage, "epoch": epoch})[0]
        except DamagedCheckpoint as damage:
            raise VclError(
                f"{damage} It is a part of this run's trace: remove the file to do without it, or run anew with "
                "--fresh --trace."
            ) from None

    def _snapshot_path(self, stage: int, epoch: int) -> Path:
        return self.trace / f"{stage:04d}-{epoch:06d}.safetensors"

    def _save(self, name: str, tree: PyTree, facts: dict[str, Any]) -> None:
        self._save_to(self.checkpoints / f"{name}.safetensors", tree, facts)

    def _save_to(self, path: Path, tree: PyTree, facts: dict[str, Any]) -> None:
        contents = dump_tree(tree, {**facts, "fingerprint": self.fingerprint})
        with writing(path):
            write_atomically(path, contents)

    def _load(self, path: Path, like: PyTree, about: dict[str, Any]) -> tuple[PyTree, dict[str, Any]]:
        """What `_save_to` wrote to this place of this run; files of earlier versions do not say what they are."""
        tree, facts = load_tree(path, like)
        for name, expected in {**about, "fingerprint": self.fingerprint}.items():
            found = facts.pop(name, None)
            if found == expected or (found is None and not self.is_checked):
                continue
            if name == "fingerprint":
                raise VclError(
                    f"The checkpoint {path} was made with another configuration than this run's: it was copied here "
                    "from another run, or run.json was changed. Restore what was changed."
                )
            raise DamagedCheckpoint(
                f"The checkpoint {path} was made for another {name} ({found}, not {expected}): it was copied there."
            )
        return tree, facts

    def _newest_good(
        self, found: list[tuple[Path, int, dict[str, Any]]], like: PyTree, say: Say
    ) -> tuple[int, PyTree, dict[str, Any]] | None:
        for path, number, about in reversed(found):
            try:
                tree, facts = self._load(path, like, about)
            except DamagedCheckpoint as damage:
                say(f"{damage} The one before it is used.")
            else:
                return number, tree, facts
        return None

    def _during(self, stage: int, phase: str) -> list[tuple[Path, int]]:
        return [(path, int(e)) for path, (e,) in self._found(rf"during-{stage:04d}-{re.escape(phase)}-(\d+)")]

    def _found(self, pattern: str) -> list[tuple[Path, tuple[str, ...]]]:
        return _matching(self.checkpoints, pattern)


def _matching(folder: Path, pattern: str) -> list[tuple[Path, tuple[str, ...]]]:
    matches = [(path, re.fullmatch(pattern + r"\.safetensors", path.name)) for path in sorted(folder.glob("*"))]
    return [(path, match.groups()) for path, match in matches if match]


def stored_runs(root: Path) -> list[RunFolder]:
    """All run folders directly below `root`, also those whose run.json is lost."""
    # A hidden folder is one that is still being made.
    names = ("run.json", "result.json", "metrics.jsonl")
    return [
        RunFolder(path) for path in sorted({path.parent for name in names for path in root.glob(f"[!.]*/{name}")})
    ]
