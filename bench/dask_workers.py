"""A sweep on two Dask workers on loopback, one of them killed in the middle, beside the same sweep without Dask.

    python bench/dask_workers.py --count 40

Every run must have one result, equal to the local one to the bit. tests/test_cluster.py has a short version.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from vcl import runs
from vcl.runs.cluster import dask
from vcl.runs.status import RunStatus
from vcl.runs.sweep import run_all

PATIENCE = 120.0


class Cluster:
    """A scheduler and two workers, each a process of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes: list[subprocess.Popen[bytes]] = []
        addresses = folder / "scheduler.json"
        common = ["--scheduler-file", str(addresses)]
        self.start("scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard", *common)
        # The file is there before its contents are.
        wait_for(lambda: addresses.exists() and addresses.read_text().rstrip().endswith("}"))
        self.address = json.loads(addresses.read_text())["address"]
        self.workers = [
            self.start(
                "worker", self.address, "--host", "127.0.0.1", "--nthreads", "1", "--no-nanny", "--no-dashboard"
            )
            for _ in range(2)
        ]

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        code = "import sys; from distributed.cli import dask_scheduler, dask_worker\n"
        code += "{'scheduler': dask_scheduler, 'worker': dask_worker}[sys.argv.pop(1)].main()"
        quiet = subprocess.DEVNULL
        command = [sys.executable, "-c", code, *words]
        process = subprocess.Popen(command, cwd=self.folder, stdout=quiet, stderr=quiet)
        self.processes.append(process)
        return process


@contextmanager
def cluster(folder: Path) -> Iterator[Cluster]:
    found = Cluster(folder)
    try:
        yield found
    finally:
        for process in found.processes:
            process.kill()
            process.wait()


def wait_for(happened: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not happened():
        if time.monotonic() > end:
            raise TimeoutError(f"It did not happen in {PATIENCE:.0f} s.")
        time.sleep(0.05)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=40, help="number of runs")
    count = parser.parse_args().count
    options = runs.StreamOptions(num_tasks=2)
    settings = {"hidden": (4,), "epochs": 60, "batch_size": 32}
    configs = [
        runs.configure("split-digits", "finetune", seed=seed, threads=1, stream=options, **settings)
        for seed in range(count)
    ]
    killed: list[int] = []
    complete: set[int] = set()
    with tempfile.TemporaryDirectory(prefix="vcl-dask-") as scratch, cluster(Path(scratch)) as now:

        def watch(number: int, status: RunStatus) -> None:
            if status.phase == "complete":
                complete.add(number)
            if status.phase == "running" and status.epoch and len(complete) >= count // 3 and not killed:
                killed.append(number)
                os.kill(now.workers[0].pid, signal.SIGKILL)
                print(f"{len(complete)} runs are complete; a worker is killed in run {number + 1}", flush=True)

        store = Path(scratch) / "store"
        options_of_sweep = {"watch": watch, "seconds_between_checkpoints": 0.1}
        found = run_all(configs, store, 1, pool=dask(now.address), **options_of_sweep)
        print("local", flush=True)
        local = run_all(configs, Path(scratch) / "local", 1, watch=lambda *_: None)
        folders = sorted(path.name for path in store.iterdir())
    same = sum(
        a["state_sha256"] == b["state_sha256"] and a["scores"] == b["scores"]
        for a, b in zip(found, local, strict=True)
    )
    once = folders == sorted(config.name for config in configs)
    print(f"{len(found)} results, {same} equal to the local ones to the bit; one worker killed: {bool(killed)}")
    sys.exit(not (same == count and once and killed))


if __name__ == "__main__":
    main()
