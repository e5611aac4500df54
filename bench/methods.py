"""Time of every method's training step divided by that of fine-tuning at the same batch size, in the same run.

    .venv/bin/python bench/methods.py
    .venv/bin/python bench/methods.py --family split ewc icarl

The method's settings for permuted or split MNIST, on random images. What is timed is the training of the last of
ten or five tasks, when memories, penalties and columns of earlier ones cost the most: all phases together, divided
by their steps. What happens once a task (a Fisher matrix, the choice of exemplars) is not. Machines are noisy:
method and fine-tuning are measured in turn, after both are compiled, and the median of the ratios is given.
"""

import argparse
import functools
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from measure import use_cores, write

import vcl
from vcl.core import Examples, Scenario, StreamSpec
from vcl.methods import METHODS
from vcl.training import Data, Fitter, compiled_epochs, to_device


@dataclass(frozen=True)
class Family:
    """The tasks of a family of benchmarks."""

    name: str
    classes: int
    heads: tuple[int, ...]
    scenario: Scenario


FAMILIES = {
    "permuted": Family("permuted", 10, (0,) * 10, "domain"),
    "split": Family("split", 2, (0, 1, 2, 3, 4), "task"),
}
STEPS = 30
FEWEST_EXAMPLES = 5000
ROUNDS = 7


@dataclass
class Listener:
    """A fitter that records the calls it gets."""

    fitter: Fitter = field(default_factory=Fitter)
    asked: list[dict[str, Any]] = field(default_factory=list)

    def __call__(self, key: Any, name: str, step: Any, params: Any, args: Any, data: Data, **sizes: int) -> Any:
        self.asked.append({"key": key, "step": step, "params": params, "args": args, "data": data, **sizes})
        return self.fitter(key, name, step, params, args, data, **sizes)


def settings_of(method: str, family: Family, **settings: Any) -> Any:
    """The method as it is on MNIST, but with a single epoch of everything."""
    once = {f.name: 1 for f in fields(METHODS[method]) if f.name.endswith("epochs") and f.default is not None}
    return vcl.configure(f"{family.name}-mnist", method, **once, **settings).learner


def random_task(number: int, examples: int, classes: int, heads: int = 1) -> Data:
    """Images and labels at random, each with a head, which only methods that mix tasks look at."""
    rng = np.random.default_rng(number)
    images = (rng.random((examples, 784)) < 0.2) * rng.integers(0, 256, (examples, 784))
    labels, groups = rng.integers(0, classes, examples), rng.integers(0, heads, examples).astype(np.int32)
    return to_device(Examples(images.astype(np.uint8), labels, groups), examples)


def step_time(learner: Any, family: Family) -> Callable[[], float]:
    """Seconds per step of the last task's training."""
    examples = max(STEPS * learner.batch_size, FEWEST_EXAMPLES)
    spec = StreamSpec((28, 28), "uint8", family.classes, family.heads, examples, family.scenario)
    state = learner.init(jax.random.key(0), spec)
    listener = Listener()
    for number in range(spec.num_tasks):
        listener = Listener()
        key = jax.random.key(number)
        data = random_task(number, examples, family.classes, max(family.heads) + 1)
        state = learner.observe(key, state, spec.task(number), data, listener)

    def measure() -> float:
        return sum(map(seconds, listener.asked)) / listener.fitter.steps

    return measure


def seconds(fit: dict[str, Any]) -> float:
    """How long this fit takes, once more."""
    step, data, epochs = fit["step"], fit["data"], fit["epochs"]
    batch_size = min(fit["batch_size"], data.capacity)
    start = jax.tree.map(lambda a: jnp.array(a, a.dtype), (step.init(fit["params"]), jnp.zeros(epochs)))
    carry, history = jax.block_until_ready(start)
    began = time.perf_counter()
    jax.block_until_ready(
        compiled_epochs()(
            step, batch_size, fit["key"], carry, history, fit["args"], data, jnp.int32(0), jnp.int32(epochs)
        )
    )
    return time.perf_counter() - began


@functools.cache
def finetuning(family: Family, batch_size: int, hidden: tuple[int, ...]) -> Callable[[], float]:
    return step_time(settings_of("finetune", family, batch_size=batch_size, hidden=hidden), family)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("methods", nargs="*", metavar="METHOD", help="the methods to measure; all if none is named")
    parser.add_argument("--family", choices=FAMILIES, default="permuted", help="whose settings they have")
    chosen = parser.parse_args()
    use_cores(1)
    family = FAMILIES[chosen.family]
    unknown = [method for method in chosen.methods if method not in METHODS]
    if unknown:
        parser.error(f"no such method: {', '.join(unknown)}. Known: {', '.join(METHODS)}.")
    rows: list[dict[str, Any]] = []
    for method in chosen.methods or METHODS:
        learner = settings_of(method, family)
        step, reference = step_time(learner, family), finetuning(family, learner.batch_size, learner.hidden)
        step(), reference()
        pairs = [(step(), reference()) for _ in range(ROUNDS)]
        ratio = statistics.median(s / r for s, r in pairs)
        times = [1e3 * statistics.median(column) for column in zip(*pairs, strict=True)]
        print(f"{method}: {ratio:.2f}", file=sys.stderr, flush=True)
        rows.append(
            {
                "method": method,
                "batch": learner.batch_size,
                "step (ms)": times[0],
                "fine-tuning (ms)": times[1],
                "ratio": ratio,
            }
        )
    some = f"-{'-'.join(chosen.methods)}" if chosen.methods else ""
    write(f"methods-{chosen.family}{some}", f"A step while the last {chosen.family} task is learnt", rows)


if __name__ == "__main__":
    main()
