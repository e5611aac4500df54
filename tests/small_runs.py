"""Small runs on digits, learnt in seconds, for tests that look into runs."""

from pathlib import Path
from typing import Any

from vcl import runs
from vcl.analysis import analyse
from vcl.report.page.html import Reported
from vcl.runs.folder import RunFolder


def split(root: Path, **settings: Any) -> RunFolder:
    """Three tasks, one layer: some units activated by task 1, some by task 2, some never."""
    return learn(root, "split-digits", 3, **{"hidden": (12,), "epochs": 40, **settings})


def permuted(root: Path) -> RunFolder:
    """Two tasks, one head, two layers."""
    return learn(root, "permuted-digits", 2, hidden=(24, 16), epochs=10)


def learn(root: Path, benchmark: str, num_tasks: int, method: str = "vcl", **settings: Any) -> RunFolder:
    options = runs.StreamOptions(num_tasks=num_tasks)
    config = runs.configure(benchmark, method, threads=1, stream=options, **settings)
    runs.run(config, root)
    return RunFolder.open(root / config.name)


def reported(folder: RunFolder) -> Reported:
    result = folder.result
    assert result is not None
    return Reported(folder.record, result, analyse(folder))
