"""What events, checksums, checkpoints and sinks cost: their CPU time as a share of the training of split MNIST.

    .venv/bin/python bench/overhead.py --epochs 20 --num-tasks 2

A share does not depend on the number of epochs: what is stored comes about twice in a second of training.
"""

import argparse
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import vcl
from vcl import runs
from vcl.runs.events import Channel
from vcl.runs.folder import RunFolder
from vcl.runs.sinks import TensorBoard

LIMIT = 0.01
spent: Counter[str] = Counter()
calls: Counter[str] = Counter()
depth = 0


def timed(place: Any, name: str) -> None:
    """Count the CPU time of a method; what it calls itself counts once."""
    function: Callable[..., Any] = getattr(place, name)

    def measured(*args: Any, **options: Any) -> Any:
        global depth  # noqa: PLW0603
        depth += 1
        began = time.thread_time()
        try:
            return function(*args, **options)
        finally:
            depth -= 1
            if not depth:
                spent[name] += time.thread_time() - began
                calls[name] += 1

    setattr(place, name, measured)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=None, help="default: those of vcl run split-mnist")
    parser.add_argument("--num-tasks", type=int, default=None)
    chosen = parser.parse_args()
    for place, name in ((Channel, "receive"), (RunFolder, "save_during"), (RunFolder, "save_after")):
        timed(place, name)
    runs.prepare_jax(1)
    settings = {} if chosen.epochs is None else {"epochs": chosen.epochs}
    config = vcl.configure(
        "split-mnist", threads=1, stream=vcl.StreamOptions(num_tasks=chosen.num_tasks), **settings
    )
    with tempfile.TemporaryDirectory() as scratch:
        vcl.run(config, Path(scratch) / "warm")  # compiles
        spent.clear()
        calls.clear()
        began = time.process_time()
        vcl.run(config, Path(scratch) / "runs", sinks=[TensorBoard(Path(scratch) / "board")])
        whole = time.process_time() - began
    for name, seconds in spent.items():
        print(f"{name}: {calls[name]} times, {1000 * seconds / calls[name]:.2f} ms each, {seconds:.3f} s")
    share = sum(spent.values()) / whole
    print(f"{whole:.1f} s of CPU in all; events, checksums, checkpoints and TensorBoard: {100 * share:.2f} %")
    sys.exit(share > LIMIT)


if __name__ == "__main__":
    main()
