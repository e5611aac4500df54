"""Steps beside PyTorch, tasks beside Avalanche, Kronecker factors beside laplace-torch, one core, in turn.

    .venv/bin/python bench/peers.py
    .venv/bin/python bench/peers.py --compile      # torch.compile too, which needs a C++ compiler

The peers run in an environment of their own, `.bench-venv`, which this script sets up once (or the one that
`--environment` names). The workloads are the paper's, with 1 and 10 samples, and fine-tuning at batches of 256.
Batches are drawn and shuffled in both. Times are those that the processes had on the processor.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from measure import Timer, clock, use_cores, write
from methods import random_task
from step import STEPS, step_time

from vcl import learning
from vcl.core import Examples, StreamSpec
from vcl.curvature import BATCH, kronecker_factors
from vcl.methods import make
from vcl.methods.finetune import Finetune
from vcl.nets import MLP, random, select_head
from vcl.training import Adam, Fitter, compiled_epochs, to_device

ENVIRONMENT = Path(__file__).parent.parent / ".bench-venv"
PACKAGES = (
    ("torch==2.13.0", "numpy"),
    ("--no-deps", "torchvision==0.28.0"),
    ("avalanche-lib==0.6.0", "quadprog"),
    ("laplace-torch==0.3",),
)
"""Installed one after the other: Avalanche asks for torchvision, which asks for another torch."""
FOLDER = Path(__file__).parent
WORKLOADS = {
    "split, 784-200-2, 256": ((200,), 2, 256),
    "permuted, 784-100-100-10, 1024": ((100, 100), 10, 1024),
}
TASK = {"examples": 24576, "epochs": 2, "batch_size": 256}


def python_of(environment: Path) -> Path:
    """The environment's Python, set up if it is not there, and again if that was interrupted."""
    python, ready = environment / "bin" / "python", environment / "ready"
    if not ready.exists():
        print(f"Setting up {environment}, once", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", environment], check=True)
        for packages in PACKAGES:
            subprocess.run([python, "-m", "pip", "install", "--quiet", *packages], check=True)
        ready.touch()
    return python


def theirs(python: Path, script: str, **asked: Any) -> float:
    """Seconds of a peer, the fastest of some rounds."""
    answer = subprocess.run([python, FOLDER / script, json.dumps(asked)], check=True, capture_output=True, text=True)
    return min(json.loads(answer.stdout.splitlines()[-1]))


def task_time(method: str) -> Timer:
    """Seconds for the second of two tasks, as Avalanche does it: all that belongs to a task is in it."""
    spec = StreamSpec((28, 28), "uint8", 10, (0, 0), TASK["examples"], "domain")
    learner = make(method, {"hidden": (100, 100), "epochs": TASK["epochs"], "batch_size": TASK["batch_size"]})
    rng = np.random.default_rng(0)
    images = (rng.random((TASK["examples"], 784)) < 0.2) * rng.integers(0, 256, (TASK["examples"], 784))
    examples = Examples(images.astype(np.uint8), rng.integers(0, 10, TASK["examples"]))
    first = learning.observe(learning.begin(learner, spec, 0), spec.task(0), examples, Fitter())

    def measure() -> float:
        began = clock()
        jax.block_until_ready(learning.observe(first, spec.task(1), examples, Fitter()).state)
        return clock() - began

    return measure


def beside_avalanche(python: Path, rounds: int, turns: int) -> None:
    rows: list[dict[str, Any]] = []
    for method in ("finetune", "ewc", "si", "gem", "agem"):
        ours = task_time(method)
        ours()  # compile
        asked = {"method": method, "rounds": rounds, **TASK}
        taken = [(ours(), theirs(python, "peers_avalanche.py", **asked)) for _ in range(turns)]
        fastest = [min(column) for column in zip(*taken, strict=True)]
        row = {"vcl (s)": fastest[0], "Avalanche (s)": fastest[1], "times ours": fastest[1] / fastest[0]}
        rows.append({"second task": method, **row})
        write("peers-avalanche", f"The second of two tasks beside Avalanche, one core, {TASK}", rows)


def factors_time() -> Timer:
    """Seconds for the Kronecker factors of {100, 100} on one task."""
    weights = random(jax.random.key(0), MLP((100, 100)), StreamSpec((28, 28), "uint8", 10, (0,), TASK["examples"]))
    data = random_task(0, TASK["examples"], 10)

    def measure() -> float:
        began = clock()
        jax.block_until_ready(kronecker_factors(jax.random.key(1), select_head(weights, 0), data))
        return clock() - began

    return measure


def beside_laplace(python: Path, rounds: int, turns: int) -> None:
    ours = factors_time()
    ours()  # compile
    asked = {"examples": TASK["examples"], "batch_size": BATCH, "rounds": rounds}
    taken = [(min(ours() for _ in range(rounds)), theirs(python, "peers_laplace.py", **asked)) for _ in range(turns)]
    fastest = [min(column) for column in zip(*taken, strict=True)]
    row = {"vcl (s)": fastest[0], "laplace-torch (s)": fastest[1], "times ours": fastest[1] / fastest[0]}
    title = f"Kronecker factors (exact) of 784-100-100-10 beside laplace-torch, one core, {asked}"
    write("peers-laplace", title, [{"what": "factors of one task", **row}])


def finetune_time(hidden: tuple[int, ...], classes: int, batch_size: int) -> Timer:
    """Seconds per step of our fine-tuning."""
    count = batch_size * STEPS
    rng = np.random.default_rng(0)
    images = (rng.random((count, 784)) < 0.2) * rng.integers(0, 256, (count, 784))
    data = to_device(Examples(images.astype(np.uint8), rng.integers(0, classes, count)), count)
    learner = Finetune(hidden=hidden, batch_size=batch_size)
    key = jax.random.key(0)
    network = select_head(random(key, learner.architecture, StreamSpec((28, 28), "uint8", classes, (0,), count)), 0)
    step = Adam(learner.loss, 0.001)

    def measure() -> float:
        carry = jax.tree.map(lambda a: jnp.array(a, a.dtype), step.init(network))
        began = clock()
        done = compiled_epochs()(step, batch_size, key, carry, jnp.zeros(1), None, data, jnp.int32(0), jnp.int32(1))
        jax.block_until_ready(done)
        return (clock() - began) / STEPS

    return measure


def beside_pytorch(python: Path, rounds: int, turns: int, compiled: bool) -> None:
    rows: list[dict[str, Any]] = []
    for name, (hidden, classes, batch_size) in WORKLOADS.items():
        widths = [784, *hidden, classes]
        cases: dict[str, tuple[Timer, dict[str, Any]]] = {
            f"VCL, {samples} sample{'s' if samples > 1 else ''}": (
                step_time(hidden, classes, batch_size, train_samples=samples),
                {"method": "vcl", "widths": widths, "batch_size": batch_size, "samples": samples},
            )
            for samples in (1, 10)
        }
        cases["fine-tuning, batch 256"] = (
            finetune_time(hidden, classes, 256),
            {"method": "finetune", "widths": widths, "batch_size": 256},
        )
        for case, (ours, asked) in cases.items():
            ours()  # compile
            taken: dict[str, list[float]] = {}
            for _ in range(turns):
                taken.setdefault("vcl (ms)", []).append(1e3 * min(ours() for _ in range(rounds)))
                for way in (False, True) if compiled else (False,):
                    label = "PyTorch, compiled (ms)" if way else "PyTorch (ms)"
                    seconds = theirs(python, "peers_torch.py", rounds=rounds, compiled=way, **asked)
                    taken.setdefault(label, []).append(1e3 * seconds)
            fastest = {label: min(values) for label, values in taken.items()}
            best_peer = min(value for label, value in fastest.items() if label != "vcl (ms)")
            rows.append(
                {"workload": name, "step of": case, **fastest, "times ours": best_peer / fastest["vcl (ms)"]}
            )
            write("peers-pytorch", "A step beside PyTorch's, one core", rows)


def main() -> None:
    parser = argparse.ArgumentParser(description="Ours beside PyTorch, Avalanche and laplace-torch.")
    parser.add_argument("--environment", type=Path, default=ENVIRONMENT)
    parser.add_argument("--peer", choices=("pytorch", "avalanche", "laplace", "all"), default="all")
    parser.add_argument("--compile", action="store_true", help="torch.compile too")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--turns", type=int, default=2)
    options = parser.parse_args()
    use_cores(1)
    python = python_of(options.environment)
    if options.peer in ("pytorch", "all"):
        beside_pytorch(python, options.rounds, options.turns, options.compile)
    if options.peer in ("avalanche", "all"):
        beside_avalanche(python, options.rounds, options.turns)
    if options.peer in ("laplace", "all"):
        beside_laplace(python, options.rounds, options.turns)


if __name__ == "__main__":
    main()
