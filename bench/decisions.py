"""Decisions on real streams: the risk and the coverage that were asked for, and those that came true.

    .venv/bin/python bench/decisions.py --seeds 3 --out results/streams/decisions.json

Every stream goes through a model of `vcl learn` batch by batch, each with a part held out. After each batch,
decisions are made for that batch's test rows, which the model has not seen. `once` is the part of answers that are
wrong, or how often the set holds the truth, pooled over batches.

Whether the rows held out were easier than the test rows is chance, and with 300 rows it moves the risk by a point.
`realised` is therefore the same over random divisions of these rows, none of which was learnt from, into as many
held-out and as many new ones. `spread` is the standard deviation over divisions, for one seed: how far `once` may
be off by chance. `answered` is the part of examples answered, `apart` the mean distance of a single batch from what
was asked for.

Of risks, only batches count in which the model would exceed them by answering everything, judged on held-out and
test rows together. If held-out rows alone decided, batches would count where these happened to be the harder ones,
and the risk would look too low.
"""

import argparse
import json
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

import vcl
from vcl.core import Examples
from vcl.kept import Batch, KeptModel
from vcl.kept.decisions import HeldOut, reject_below, set_above
from vcl.methods import METHODS
from vcl.model import DEFAULT_TASK
from vcl.runs import prepare_jax

STREAMS = ("elec2", "weather", "covertype-time", "covertype-areas", "flights-months")
RISKS = (0.05, 0.1, 0.15)
COVERAGES = (0.8, 0.9, 0.95)
DIVISIONS = 100


def batch_of(name: str, examples: Examples) -> Batch:
    columns = {f"x{i + 1}": column for i, column in enumerate(examples.inputs.T.astype(np.float64))}
    return Batch(name, columns, None, examples.labels.tolist(), "label")


def rows_of(numbers: HeldOut, rows: np.ndarray) -> HeldOut:
    return HeldOut(**{field.name: getattr(numbers, field.name)[rows] for field in fields(HeldOut)})


def together(first: HeldOut, second: HeldOut) -> HeldOut:
    parts = {f.name: [getattr(first, f.name), getattr(second, f.name)] for f in fields(HeldOut)}
    return HeldOut(**{name: np.concatenate(arrays) for name, arrays in parts.items()})


def divisions(held: HeldOut, found: HeldOut, rng: np.random.Generator) -> Iterator[tuple[HeldOut, HeldOut]]:
    """The rows as they were held out, then divided at random: rows to choose thresholds by, and new ones."""
    yield held, found
    rows = together(held, found)
    for _ in range(DIVISIONS):
        order = rng.permutation(rows.size)
        yield rows_of(rows, order[: held.size]), rows_of(rows, order[held.size :])


def decided(held: HeldOut, found: HeldOut, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """For each request and each division: how many examples there were, were answered, and were answered wrongly."""
    counts: dict[str, list[tuple[int, int, int]]] = {}
    for known, new in divisions(held, found, rng):
        for risk in RISKS:
            answered = new.confidence >= reject_below(known, risk)
            wrong = answered & ~new.correct
            counts.setdefault(f"risk {risk}", []).append((new.size, int(answered.sum()), int(wrong.sum())))
        for coverage in COVERAGES:
            missed = new.label_probability < set_above(known, coverage)
            counts.setdefault(f"coverage {coverage}", []).append((new.size, new.size, int(missed.sum())))
    return {request: np.array(rows) for request, rows in counts.items()}


def measured(held: HeldOut, found: HeldOut, rng: np.random.Generator) -> dict[str, Any]:
    """Of one batch; `error` is how much of it would be wrong if everything was answered."""
    error = float(np.mean(~together(held, found).correct))
    return {"held_out": held.size, "error": error, "counts": decided(held, found, rng)}


def through(stream: Any, method: str | None, test: float, seed: int) -> list[dict[str, Any]]:
    """A model taught batch after batch; what its decisions came to after each."""
    kept, rows = None, []
    for stage, name in enumerate(stream.task_names):
        batch = batch_of(name, stream.train(stage))
        kept = kept or KeptModel.begin(batch, method, seed=seed)
        kept.learn(batch, test=test)
        unseen = batch_of(name, stream.test(stage))
        found = HeldOut.of(kept.predict(unseen), kept.numbers(unseen.labels or []), most=unseen.size)
        held = kept.held_out[DEFAULT_TASK]
        rows.append(measured(held, found, np.random.default_rng([seed, stage])))
    return rows


def rates(counts: np.ndarray, asked: float, wanted: Callable[[Any], Any]) -> dict[str, float]:
    """From counts (seed, batch, division, 3); `wanted` turns the part answered wrongly into what was asked for."""
    total = counts.sum(axis=(0, 1))
    of_seeds = counts[:, :, 1:].sum(axis=1)
    of_seeds = of_seeds[of_seeds[..., 1].any(axis=1)]
    single = counts[:, :, 1:][counts[:, :, 1:, 1] > 0]
    return {
        "realised": float(wanted(total[1:, 2].sum() / max(total[1:, 1].sum(), 1))),
        "once": float(wanted(total[0, 2] / max(total[0, 1], 1))),
        "spread": float(np.mean(np.std(of_seeds[..., 2] / np.maximum(of_seeds[..., 1], 1), axis=1, ddof=1))),
        "apart": float(np.mean(np.abs(wanted(single[:, 2] / single[:, 1]) - asked))),
    }


def summary(seeds: list[list[dict[str, Any]]]) -> dict[str, dict[str, float]]:
    """Over all batches of a stream, and all seeds."""
    out: dict[str, dict[str, float]] = {}
    for risk in RISKS:
        counts = np.array([[batch["counts"][f"risk {risk}"] for batch in batches] for batches in seeds])
        # Batches that do not count must not leave gaps: they count as nothing answered.
        bound = np.array([[batch["error"] > risk for batch in batches] for batches in seeds])
        sizes, answered, _ = counts[:, :, 1:].sum(axis=(0, 1, 2))
        found = rates(counts * bound[:, :, None, None], risk, lambda wrong: wrong) if bound.any() else {}
        out[f"risk {risk}"] = {**found, "answered": float(answered / sizes), "batches": int(bound.sum())}
    for coverage in COVERAGES:
        counts = np.array([[batch["counts"][f"coverage {coverage}"] for batch in batches] for batches in seeds])
        found = rates(counts, coverage, lambda missed: 1 - missed)
        out[f"coverage {coverage}"] = {**found, "batches": counts.shape[0] * counts.shape[1]}
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("streams", nargs="*", choices=STREAMS, help="default: all five")
    parser.add_argument("--method", choices=METHODS, metavar="METHOD", help="default: that of `vcl learn`")
    parser.add_argument("--test", type=float, default=0.1, help="part of each batch held out")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--validation", type=float, default=0.0, help="measure on this part of the training data")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    prepare_jax(1)
    document: dict[str, Any] = {"method": given.method or "default", "test": given.test, "streams": {}}
    for name in given.streams or STREAMS:
        seeds = []
        for seed in range(given.first_seed, given.first_seed + given.seeds):
            stream = vcl.build(name, vcl.StreamOptions(validation=given.validation), seed)
            seeds.append(through(stream, given.method, given.test, seed))
        document["streams"][name] = show(name, seeds)
        if given.out:
            given.out.parent.mkdir(parents=True, exist_ok=True)
            given.out.write_text(json.dumps(document, indent=1) + "\n")


def show(name: str, seeds: list[list[dict[str, Any]]]) -> dict[str, Any]:
    """Print what came true on a stream; return it."""
    found = summary(seeds)
    held_out = float(np.mean([batch["held_out"] for batches in seeds for batch in batches]))
    print(f"{name}, {len(seeds)} seeds: {held_out:.0f} held out of each batch on average")
    for what, row in found.items():
        parts = [f"{key} {100 * value:.2f} %" for key, value in row.items() if key != "batches"]
        print(f"  {what:13} {', '.join(parts)}, {row['batches']} batches", flush=True)
    return {"seeds": len(seeds), "held_out": held_out, "summary": found}


if __name__ == "__main__":
    main()
