"""Peak memory of permuted MNIST with 50 tasks, on a few epochs.

.venv/bin/python bench/memory.py
"""

import resource
import sys
import tempfile
from pathlib import Path

from measure import write

from vcl import StreamOptions, configure, run
from vcl.runs.events import Silent

LIMIT = 1.5


class Count(Silent):
    def evaluated(self, stage: int, task: int, accuracies: list[float]) -> None:
        print(f"\rtask {stage + 1}, {peak():.2f} GiB", end="", file=sys.stderr, flush=True)


def peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        run(
            configure("permuted-mnist", stream=StreamOptions(num_tasks=50), epochs=2, test_samples=2),
            Path(scratch),
            reporter=Count(),
        )
    print(file=sys.stderr)
    row = {"workload": "permuted MNIST, 50 tasks", "peak (GiB)": peak(), "wanted, at most": LIMIT}
    write("memory", "Peak memory of a run", [row])


if __name__ == "__main__":
    main()
