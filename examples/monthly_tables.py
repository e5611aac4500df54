"""A table of customers arrives every month; the model learns it, decides, and keeps none of it.

    .venv/bin/python examples/monthly_tables.py

The same on the command line: vcl learn churn.vcl january.csv --label churned, and vcl predict churn.vcl new.csv
--reject 0.05. The customers are made up.
"""

import csv
import tempfile
from pathlib import Path

import numpy as np

from vcl.kept import KeptModel, read
from vcl.kept.decisions import reject_below

MONTHS = ("january", "february", "march", "april")


def write_month(path: Path, seed: int, customers: int = 500) -> None:
    """Customers with a few missing ages; in April the prices rise."""
    rng = np.random.default_rng(seed)
    visits, age = rng.poisson(8, customers), rng.integers(18, 80, customers)
    plan = rng.choice(["basic", "family", "student"], customers)
    price = rng.normal(20 + 15 * (path.stem == "april"), 4, customers)
    leaves = price / 4 - visits + 2 * (plan == "student") + rng.normal(0, 1, customers) > -2
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["visits", "age", "plan", "price", "churned"])
        for row in zip(
            visits, np.where(rng.random(customers) < 0.1, "", age), plan, price.round(2), leaves, strict=True
        ):
            writer.writerow([*row[:4], "yes" if row[4] else "no"])


with tempfile.TemporaryDirectory() as folder:
    model_file = Path(folder, "churn.vcl")
    for number, month in enumerate(MONTHS):
        file = Path(folder, f"{month}.csv")
        write_month(file, seed=number)
        # Another day, another process: the model's file is all that is left of the months before.
        model = (
            KeptModel.load(model_file) if model_file.exists() else KeptModel.begin(read(file, "churned"), epochs=40)
        )
        entry = model.learn(model.read(file), test=0.2)
        model.save(model_file)
        before = "–" if entry["accuracy_before"] is None else f"{entry['accuracy_before']:.3f}"
        print(
            f"{month:9} accuracy before {before:5}, after {entry['accuracy_after']:.3f}",
            *entry["warnings"],
            sep="  ",
        )

    new = Path(folder, "april-new.csv")
    write_month(new, seed=99)
    batch = model.read(new)
    prediction = model.predict(batch)
    answered = prediction.probabilities.max(axis=1) >= reject_below(model.held_out["default"], 0.05)
    right = prediction.classes == model.numbers(batch.labels)
    print(f"Answered {answered.mean():.0%} of new customers, of which {np.mean(~right[answered]):.1%} wrongly.")
    print(f"The file has {model_file.stat().st_size / 1000:.0f} kB.")
