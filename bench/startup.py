"""How long it takes to start: importing, help, and the first epoch with and without compiled programs.

.venv/bin/python bench/startup.py
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from measure import write

RUN = ["run", "split-digits", "--num-tasks", "1", "--epochs", "1", "--threads", "1", "--quiet"]


def seconds(arguments: list[str], **environment: str) -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, capture_output=True, env={**os.environ, **environment})
    return time.perf_counter() - began


def fastest(arguments: list[str], rounds: int = 3, **environment: str) -> float:
    return min(seconds(arguments, **environment) for _ in range(rounds))


def run_once(scratch: Path, number: int) -> float:
    """One epoch of one task in a new folder; compiled programs are kept in `scratch`."""
    return seconds(
        ["-m", "vcl", *RUN, "--out", str(scratch / f"runs-{number}")], XDG_CACHE_HOME=str(scratch / "cache")
    )


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        first = run_once(scratch, 0)
        later = min(run_once(scratch, number) for number in (1, 2, 3))
    rows: list[dict[str, Any]] = [
        {"what": "python -c pass", "seconds": fastest(["-c", "pass"])},
        {"what": "import vcl", "seconds": fastest(["-c", "import vcl"])},
        {"what": "import jax", "seconds": fastest(["-c", "import jax"])},
        {"what": "vcl --help", "seconds": fastest(["-m", "vcl", "--help"])},
        {"what": "one epoch of split-digits, nothing compiled yet", "seconds": first},
        {"what": "the same, compiled before", "seconds": later},
    ]
    write("startup", "Starting, seconds on the wall", rows)


if __name__ == "__main__":
    main()
