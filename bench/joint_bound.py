"""Joint training on all tasks of permuted MNIST at once: the bound for methods that learn many tasks one by one.

    .venv/bin/python bench/joint_bound.py --num-tasks 10,20,50
    .venv/bin/python bench/joint_bound.py --num-tasks 50 --learning-rate 0.003

`vcl run permuted-mnist --method joint` begins anew at every stage, which for 50 tasks is 25 times the work. Here
only its last stage is trained, with the settings of its recipe or another learning rate, and tested on every task.
"""

import argparse

import numpy as np
from measure import use_cores, write

import vcl
from vcl import learning
from vcl.benchmarks import joint
from vcl.errors import VclError
from vcl.training import Fitter


def bound(num_tasks: int, seed: int, validation: float, **settings: float) -> list[float]:
    """The accuracy on each task of a network that has learnt all of them together."""
    options = vcl.StreamOptions(num_tasks=num_tasks, validation=validation)
    learner = vcl.configure("permuted-mnist", "joint", stream=options, **settings).learner
    stream = joint(vcl.build("permuted-mnist", options, seed=seed))
    last = num_tasks - 1
    start = learning.begin(learner, stream.spec, seed)
    learnt = learning.observe(start, stream.task(last), stream.train(last), Fitter())
    return [learning.score(learnt, stream.task(task), stream.test(task)).accuracy for task in range(num_tasks)]


def counts(text: str) -> list[int]:
    """Numbers of tasks with commas between."""
    return [int(part) for part in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-tasks", type=counts, default="10,20,50", help="with commas between")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument(
        "--validation", type=float, default=0.0, help="test on this part of the training data instead"
    )
    parser.add_argument("--learning-rate", type=float, help="in place of the recipe's")
    asked = parser.parse_args()
    settings = {} if asked.learning_rate is None else {"learning_rate": asked.learning_rate}
    use_cores(1)
    rows = []
    for num_tasks in asked.num_tasks:
        for seed in range(asked.seeds):
            try:
                accuracies = 100.0 * np.array(bound(num_tasks, seed, asked.validation, **settings))
            except VclError as error:
                parser.error(str(error))
            rows.append(
                {
                    "tasks": num_tasks,
                    "seed": seed,
                    "average accuracy (%)": f"{accuracies.mean():.2f}",
                    "lowest (%)": f"{accuracies.min():.2f}",
                    "highest (%)": f"{accuracies.max():.2f}",
                }
            )
    data = "validation" if asked.validation else "test"
    name = "joint-bound" if asked.learning_rate is None else f"joint-bound-rate-{asked.learning_rate:g}"
    write(name, f"Joint training on permuted MNIST, all tasks at once, {data} data", rows)


if __name__ == "__main__":
    main()
