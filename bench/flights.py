"""Twelve months of flights as CSV files through `vcl learn`: time, size, and a copy taught on from June.

    .venv/bin/python bench/flights.py --out results/streams/flights-learn.json

Each month is a process of its own, on one core. After June the model is copied, and the copy learns the rest too: it
must end with the same weights, to the bit. Decisions are compared with what was asked for, a risk of 20 % and a
coverage of 90 %, on rows of the month learnt last that the model has not seen.
"""

import argparse
import csv
import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import vcl
from vcl.kept import KeptModel

RISK, COVERAGE = 0.2, 0.9


def write(path: Path, inputs: np.ndarray, labels: np.ndarray) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*(f"x{i + 1}" for i in range(inputs.shape[1])), "delayed"])
        writer.writerows(
            [*map("{:.5g}".format, row), "yes" if late else "no"] for row, late in zip(inputs, labels, strict=True)
        )


def run(*arguments: Any) -> str:
    command = [sys.executable, "-m", "vcl", *map(str, arguments)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def learn(model: Path, file: Path, *new: str) -> dict[str, Any]:
    began, used = time.monotonic(), of_children()
    entry = json.loads(run("learn", model, file, *new, "--json"))[0]
    seconds = {"wall_seconds": time.monotonic() - began, "cpu_seconds": of_children() - used}
    return {**entry, "source": file.name, **seconds, "bytes": model.stat().st_size}


def of_children() -> float:
    """Seconds of a core that all commands so far took: the wall clock also counts what else the machine does."""
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime


def decisions(model: Path, file: Path, labels: np.ndarray) -> dict[str, float]:
    """What was realised on rows that the model has not seen."""
    answers = json.loads(run("predict", model, file, "--reject", RISK, "--coverage", COVERAGE, "--json"))
    truth = np.where(labels, "yes", "no")
    wrong = [a["decision"] != t for a, t in zip(answers, truth, strict=True) if a["decision"] != "don't know"]
    held = [t in a["set"].split("|") for a, t in zip(answers, truth, strict=True)]
    return {"answered": len(wrong) / len(truth), "risk": float(np.mean(wrong)), "coverage": float(np.mean(held))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--months", type=int, default=12)
    parser.add_argument("--method", help="default: that of `vcl learn`")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    stream = vcl.build("flights-months", vcl.StreamOptions(), seed=0)
    months = []
    with tempfile.TemporaryDirectory() as folder:
        model, copy = Path(folder, "flights.vcl"), Path(folder, "copy", "flights.vcl")
        for month in range(given.months):
            train, test = (Path(folder, f"{stream.task_names[month]}-{part}.csv") for part in ("train", "test"))
            write(train, *stream.train(month)[:2])
            write(test, *stream.test(month)[:2])
            new = () if month else ("--label", "delayed", *(("--method", given.method) if given.method else ()))
            entry = {**learn(model, train, *new), **decisions(model, test, stream.test(month).labels)}
            months.append(entry)
            names = ("accuracy_before", "accuracy_after", "wall_seconds", "cpu_seconds", "bytes")
            shown = {name: entry[name] for name in (*names, "answered", "risk", "coverage")}
            print(stream.task_names[month], {k: round(v, 3) if v else v for k, v in shown.items()}, flush=True)
            if month == given.months // 2 - 1:
                copy.parent.mkdir()
                shutil.copy(model, copy)
            elif copy.exists():
                learn(copy, train)
        same = KeptModel.load(model).fingerprint == KeptModel.load(copy).fingerprint
        print(f"The copy has {'the same' if same else 'OTHER'} weights.")
    if given.out:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(json.dumps({"months": months, "copy_is_equal": same}, indent=2) + "\n")


if __name__ == "__main__":
    main()
