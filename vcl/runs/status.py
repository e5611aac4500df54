"""How far a run has come, as its folder tells."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from vcl.errors import VclError
from vcl.runs.folder import RunFolder


@dataclass(frozen=True)
class RunStatus:
    """How far a run has come, as its folder tells."""

    phase: Literal["queued", "running", "complete", "failed"] = "queued"
    stage: int = 0
    num_stages: int = 1
    unit: Literal["task", "batch"] = "task"
    """What a stage is."""
    epoch: int = 0
    objective: float | None = None
    accuracies: tuple[float, ...] = ()
    scored: int = 0
    """The number of stages that were evaluated."""

    @property
    def place(self) -> str:
        """The stage under way."""
        return f"{self.unit} {self.stage + 1}/{self.num_stages}"


def run_status(path: Path) -> RunStatus:
    """Read from a run's folder how far it is; it is running or stopped unless it is complete.

    A folder that does not exist yet has not started.
    """
    try:
        folder = RunFolder.open(path)
        stages, complete = folder.record["stages"], folder.result is not None
    except (VclError, KeyError):
        return RunStatus()
    events = folder.events()
    objectives = [e for e in events if e["event"] == "objective"]
    scored = [e for e in events if e["event"] == "evaluation"]
    nothing: dict[str, Any] = {"stage": 0, "first": 0, "objectives": []}
    last = objectives[-1] if objectives else nothing
    return RunStatus(
        phase="complete" if complete else "running",
        stage=last["stage"],
        num_stages=len(stages),
        unit="task" if len(stages) == len(set(stages)) else "batch",
        epoch=last["first"] + len(last["objectives"]),
        objective=last["objectives"][-1] if last["objectives"] else None,
        accuracies=tuple(s["accuracy"] for s in scored[-1]["scores"][: scored[-1]["task"] + 1]) if scored else (),
        scored=len(scored),
    )
