"""Decisions on real streams: the risk and the coverage that were asked for, and those that came true.

    .venv/bin/python bench/decisions.py --seeds 3 --out results/streams/decisions.json

Every stream goes through a model of `vcl learn` batch by batch, each with a part held out. After each batch,
decisions are made for that batch's test rows, which the model has not seen. `realised` is the part of answers that
are wrong, or how often the set holds the truth, pooled over batches; `answered` the part of examples answered;
`apart` the mean distance of single batches from what was asked for. Of risks, only batches count in which the model
would exceed them by answering everything.
"""

import argparse
import json
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


def batch_of(name: str, examples: Examples) -> Batch:
    columns = {f"x{i + 1}": column for i, column in enumerate(examples.inputs.T.astype(np.float64))}
    return Batch(name, columns, None, examples.labels.tolist(), "label")


def decided(held: HeldOut, found: HeldOut) -> dict[str, dict[str, float]]:
    """What comes of each request on new examples, by thresholds from held-out ones."""
    rows = {}
    for risk in RISKS:
        threshold = reject_below(held, risk)
        answered = found.confidence >= threshold
        rows[f"risk {risk}"] = {
            "asked": risk,
            "size": found.size,
            "answered": int(answered.sum()),
            "wrong": int(np.sum(answered & ~found.correct)),
            # Some held-out examples are not answered: answering them too would have been too much.
            "bound": bool((held.confidence < threshold).any()),
        }
    for coverage in COVERAGES:
        missed = found.label_probability < set_above(held, coverage)
        rows[f"coverage {coverage}"] = {"asked": coverage, "size": found.size, "missed": int(missed.sum())}
    return rows


def through(stream: Any, method: str | None, test: float, seed: int) -> list[dict[str, Any]]:
    """A model taught batch after batch; what its decisions came to after each."""
    kept, rows = None, []
    for stage, name in enumerate(stream.task_names):
        batch = batch_of(name, stream.train(stage))
        kept = kept or KeptModel.begin(batch, method, seed=seed)
        entry = kept.learn(batch, test=test)
        unseen = batch_of(name, stream.test(stage))
        found = HeldOut.of(kept.predict(unseen), kept.numbers(unseen.labels or []), most=unseen.size)
        held = kept.held_out[DEFAULT_TASK]
        rows.append(
            {
                "batch": name,
                "held_out": held.size,
                "accuracy": float(found.correct.mean()),
                "before": entry["accuracy_before"],
                "seconds": entry["seconds"],
                **decided(held, found),
            }
        )
    return rows


def summary(batches: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Over all batches of a stream, and of all seeds."""
    out: dict[str, dict[str, float]] = {}
    for risk in RISKS:
        rows = [batch[f"risk {risk}"] for batch in batches]
        bound = [row for row in rows if row["bound"] and row["answered"]]
        answered = sum(row["answered"] for row in bound)
        out[f"risk {risk}"] = {
            "realised": sum(row["wrong"] for row in bound) / answered if answered else float("nan"),
            "answered": sum(row["answered"] for row in rows) / sum(row["size"] for row in rows),
            "apart": float(np.mean([abs(row["wrong"] / row["answered"] - risk) for row in bound]))
            if bound
            else float("nan"),
            "batches": len(bound),
        }
    for coverage in COVERAGES:
        rows = [batch[f"coverage {coverage}"] for batch in batches]
        held = [1 - row["missed"] / row["size"] for row in rows]
        out[f"coverage {coverage}"] = {
            "realised": 1 - sum(row["missed"] for row in rows) / sum(row["size"] for row in rows),
            "apart": float(np.mean(np.abs(np.array(held) - coverage))),
            "batches": len(rows),
        }
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
    document: dict[str, Any] = {"method": given.method, "test": given.test, "streams": {}}
    for name in given.streams or STREAMS:
        batches = []
        for seed in range(given.first_seed, given.first_seed + given.seeds):
            stream = vcl.build(name, vcl.StreamOptions(validation=given.validation), seed)
            batches += through(stream, given.method, given.test, seed)
        found = summary(batches)
        document["streams"][name] = {"seeds": given.seeds, "summary": found, "batches": batches}
        print(f"{name}: {np.mean([b['held_out'] for b in batches]):.0f} held out of each batch on average")
        for what, row in found.items():
            parts = [f"{key} {100 * value:.2f} %" for key, value in row.items() if key != "batches"]
            print(f"  {what:13} {', '.join(parts)}, {row['batches']} batches", flush=True)
        if given.out:
            given.out.parent.mkdir(parents=True, exist_ok=True)
            given.out.write_text(json.dumps(document) + "\n")


if __name__ == "__main__":
    main()
