"""How time and memory grow: with tasks, width, samples and the size of minibatches.

    .venv/bin/python bench/growth.py
    .venv/bin/python bench/growth.py --short

VCL on random images of permuted MNIST's shape, one core. The time is that of a training step; for the number of
tasks it is that of a whole task, the preparation of its data included, when so many are allocated. Each point is
compared with the first of its row, measured in turn with it.
"""

import argparse
from typing import Any

import numpy as np
from measure import Timer, clock, in_turn, ratio, use_cores, write
from step import step_time

from vcl import learning
from vcl.core import Examples, StreamSpec, size
from vcl.methods.vcl import VCL
from vcl.training import Fitter

TASKS = (1, 10, 50, 100)
WIDTHS = (50, 100, 250, 500, 1000, 2000)
SAMPLES = (1, 2, 5, 10, 20, 32)
BATCHES = (64, 256, 1024, 4096)
EXAMPLES = 10_000


def task_time(num_tasks: int) -> Timer:
    """Seconds for the last of so many tasks, ten epochs."""
    spec = StreamSpec((28, 28), "uint8", 10, (0,) * num_tasks, EXAMPLES)
    learner = VCL(hidden=(100, 100), epochs=10, batch_size=1024)
    start = learning.begin(learner, spec, 0)
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (EXAMPLES, 784)).astype(np.uint8)
    examples = Examples(images, rng.integers(0, 10, EXAMPLES))

    def measure() -> float:
        began = clock()
        learning.observe(start, spec.task(num_tasks - 1), examples, Fitter())
        return clock() - began

    return measure


def state_bytes(num_tasks: int) -> int:
    spec = StreamSpec((28, 28), "uint8", 10, (0,) * num_tasks, EXAMPLES)
    return 4 * size(VCL(hidden=(100, 100)).init(learning.init_key(0), spec))


def rows_of(what: str, timers: dict[int, Timer], rounds: int) -> list[dict[str, Any]]:
    taken = in_turn({str(value): timer for value, timer in timers.items()}, rounds)
    first = str(next(iter(timers)))
    return [
        {what: value, "ms": 1e3 * min(taken[str(value)]), "times the first": ratio(taken, str(value), first)}
        for value in timers
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description="How time and memory grow.")
    parser.add_argument("--short", action="store_true", help="only the ends and the middle of each row")
    options = parser.parse_args()
    use_cores(1)
    rounds = 3 if options.short else 7

    def some(values: tuple[int, ...]) -> tuple[int, ...]:
        return (values[0], values[len(values) // 2], values[-1]) if options.short else values

    tasks = rows_of("tasks", {n: task_time(n) for n in some(TASKS)}, rounds)
    for row in tasks:
        row["state (MB)"] = state_bytes(row["tasks"]) / 1e6
    write("growth-tasks", "Time of a task (10 epochs of 10,000 examples) by the number of tasks", tasks)
    widths = {n: step_time((n, n), 10, 256) for n in some(WIDTHS)}
    write(
        "growth-width",
        "Time of a step by the width of two hidden layers, minibatches of 256",
        rows_of("width", widths, rounds),
    )
    samples = {n: step_time((100, 100), 10, 1024, train_samples=n) for n in some(SAMPLES)}
    write("growth-samples", "Time of a step by the number of samples", rows_of("samples", samples, rounds))
    batches = {n: step_time((100, 100), 10, n) for n in some(BATCHES)}
    write("growth-batch", "Time of a step by the size of a minibatch", rows_of("batch", batches, rounds))


if __name__ == "__main__":
    main()
