"""Real streams: methods and honest baselines side by side, every task scored after every task.

    .venv/bin/python bench/streams.py covertype-areas --seeds 5 --out results/streams/covertype-areas.json

All tasks are scored after every task, also those not yet seen. `average` is the mean accuracy over all tasks at the
end, `next` that on each next task before it is learnt, `unseen` the log-likelihood there.
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.linear_model import SGDClassifier

import vcl
from vcl import learning
from vcl.benchmarks import STREAMS, joint, settings_for
from vcl.core import Stream
from vcl.errors import VclError, choose
from vcl.methods import METHODS, make
from vcl.runs import prepare_jax
from vcl.training import Fitter

PASSES = 5
"""Passes of SGDClassifier over each batch."""

Matrix = np.ndarray
"""Accuracy and log-likelihood: (stage, task, 2)."""


def of_learner(method: str, settings: dict[str, Any], stream: Stream, seed: int) -> Matrix:
    learner = make(method, settings)
    arriving = joint(stream) if learner.joint else stream
    now = learning.begin(learner, arriving.spec, seed)
    rows = []
    for stage in range(len(stream.stages)):
        now = learning.observe(now, arriving.task(stage), arriving.train(stage), Fitter())
        scores = [learning.score(now, stream.spec.task(t), stream.test(t)) for t in range(stream.spec.num_tasks)]
        rows.append([(s.accuracy, s.log_likelihood) for s in scores])
    return np.array(rows)


def of_probabilities(
    learn: Callable[[Any], None], answer: Callable[[np.ndarray], np.ndarray], stream: Stream
) -> Matrix:
    rows = []
    for stage in range(len(stream.stages)):
        learn(stream.train(stage))
        row = []
        for task in range(stream.spec.num_tasks):
            inputs, labels, _ = stream.test(task)
            found = np.maximum(answer(inputs), 1e-6)
            row.append(
                (np.mean(found.argmax(axis=1) == labels), np.log(found[np.arange(len(labels)), labels]).mean())
            )
        rows.append(row)
    return np.array(rows)


def of_sgd(stream: Stream, seed: int) -> Matrix:
    classes = np.arange(stream.spec.num_classes)
    model = SGDClassifier(loss="log_loss", average=True, random_state=seed)

    def learn(examples: Any) -> None:
        order = np.random.default_rng(seed)
        for _ in range(PASSES):
            rows = order.permutation(len(examples.labels))
            model.partial_fit(examples.inputs[rows], examples.labels[rows], classes=classes)

    return of_probabilities(learn, model.predict_proba, stream)


def of_majority(stream: Stream) -> Matrix:
    counts = np.zeros(stream.spec.num_classes)

    def learn(examples: Any) -> None:
        counts[:] += np.bincount(examples.labels, minlength=len(counts))

    def answer(inputs: np.ndarray) -> np.ndarray:
        return np.tile(counts / counts.sum(), (len(inputs), 1))

    return of_probabilities(learn, answer, stream)


def last_label(stream: Stream) -> float:
    """How often the label is that of the row before: what a stream of changes must be better than."""
    labels = [stream.train(stage).labels for stage in range(len(stream.stages))]
    return float(np.mean([np.mean(part[1:] == part[:-1]) for part in labels[1:]]))


def measures(matrix: Matrix) -> dict[str, float]:
    """Of one seed."""
    tasks = matrix.shape[1]
    ahead = [(t, t + 1) for t in range(tasks - 1)]
    unseen = [(s, t) for s in range(tasks) for t in range(s + 1, tasks)]
    best = matrix[:-1, : tasks - 1, 0].max(axis=0)
    return {
        "average": float(matrix[-1, :, 0].mean()),
        "log_likelihood": float(matrix[-1, :, 1].mean()),
        "forgetting": float(np.mean(best - matrix[-1, : tasks - 1, 0])),
        "next": float(np.mean([matrix[s, t, 0] for s, t in ahead])),
        "unseen": float(np.mean([matrix[s, t, 1] for s, t in unseen])),
        "static": float(matrix[0, :, 0].mean()),
    }


def methods_named(text: str) -> list[str]:
    try:
        return [choose("method", name, METHODS) for name in text.split(",")]
    except VclError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def settings_of(method: str, extra: dict[str, Any]) -> dict[str, Any]:
    """Those given for all methods, then those for this one."""
    own = {name.partition(".")[2]: value for name, value in extra.items() if name.startswith(f"{method}.")}
    return {**{name: value for name, value in extra.items() if "." not in name}, **own}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stream", choices=[name for name, known in STREAMS.items() if known.family == "real"])
    parser.add_argument(
        "--methods",
        type=methods_named,
        default="kronecker-vcl,vcl,finetune,ewc,joint",
        help="with commas; the names of `vcl methods`",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        help="a setting of all methods, NAME=VALUE, or of one, METHOD.NAME=VALUE",
    )
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--first-seed", type=int, default=0, help="settings are chosen with seeds from 100 on")
    parser.add_argument(
        "--validation", type=float, default=0.0, help="part of the training data to evaluate on instead"
    )
    parser.add_argument("--no-baselines", action="store_true")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    prepare_jax(1)
    found: dict[str, list[dict[str, float]]] = {}
    extra = {name: json.loads(value) for name, _, value in (text.partition("=") for text in given.set)}
    for seed in range(given.first_seed, given.first_seed + given.seeds):
        stream = vcl.build(given.stream, vcl.StreamOptions(validation=given.validation), seed)
        if not given.no_baselines:
            found.setdefault("majority", []).append(measures(of_majority(stream)))
            found.setdefault("SGDClassifier", []).append(measures(of_sgd(stream, seed)))
        for method in given.methods:
            kind: Any = METHODS[method]
            settings = {**settings_for(kind.recipes["fast"], given.stream), **settings_of(method, extra)}
            began = time.process_time()
            one = measures(of_learner(method, settings, stream, seed))
            one["seconds"] = time.process_time() - began
            found.setdefault(method, []).append(one)
        # After every seed: what is measured so far is worth keeping.
        show(given.stream, found, last_label(stream))
        if given.out:
            given.out.parent.mkdir(parents=True, exist_ok=True)
            document = {"stream": given.stream, "set": extra, "last_label": last_label(stream), "seeds": found}
            given.out.write_text(json.dumps(document, indent=2) + "\n")


def show(name: str, found: dict[str, list[dict[str, float]]], last: float) -> None:
    """A table of means over seeds."""
    print(f"{name}; the last label is right {100 * last:.2f} %")
    print(f"{'':16} seeds average ± std   forgetting   next  static   unseen log-lik.   seconds")
    for method, ones in found.items():
        mean = {key: np.mean([one[key] for one in ones]) for key in ones[0]}
        spread = np.std([one["average"] for one in ones], ddof=1) if len(ones) > 1 else 0.0
        print(
            f"{method:16} {len(ones):5} {100 * mean['average']:6.2f} ± {100 * spread:4.2f} "
            f"{100 * mean['forgetting']:10.2f} {100 * mean['next']:8.2f} {100 * mean['static']:6.2f} "
            f"{mean['unseen']:10.3f} {mean.get('seconds', 0.0):16.0f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
