"""A model that learns from a new batch of data every month, without keeping the old ones.

    .venv/bin/python examples/monthly_batches.py

Handwritten digits arrive in monthly batches of 200. Between the months the model is a file.
"""

import tempfile
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

import vcl

MONTHS = ("January", "February", "March", "April", "May", "June")

images, labels = load_digits(return_X_y=True)
order = np.random.default_rng(0).permutation(len(images))
images, labels = images[order] / 16, labels[order]
test = images[1300:], labels[1300:]


def batch(month: int) -> tuple[np.ndarray, np.ndarray]:
    rows = slice(200 * month, 200 * (month + 1))
    return images[rows], labels[rows]


def new_model() -> vcl.Model:
    # variance_rate=1.0: the default of 0.3 protects earlier tasks; here all batches are of the same task.
    return vcl.Model("vcl", hidden=(50,), epochs=200, batch_size=64, variance_rate=1.0)


def report(model: vcl.Model, month: str) -> None:
    unsure = model.uncertainty(test[0]).epistemic.mean()
    print(f"{month:9} accuracy {model.score(*test):.3f}, epistemic uncertainty {unsure:.3f} nats")


with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "digits.vcl"
    for number, month in enumerate(MONTHS):
        # Another day, another process: the file is all that is left of the months before.
        model = vcl.Model.load(path) if path.exists() else new_model()
        model.learn(*batch(number)).save(path)
        report(model, month)
    print(f"The file has {path.stat().st_size / 1000:.0f} kB, however many months there are.")

report(new_model().learn(*batch(5)), "June only")
