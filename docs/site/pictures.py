"""The pictures of the tutorial, from models that learn in seconds.

.venv/bin/python docs/site/pictures.py

Prints the numbers that the tutorial states.
"""

import tempfile
from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
import numpy as np

import vcl

IMAGES = Path(__file__).resolve().parent.parent / "images"
ORANGE, BLUE = "#c75a00", "#1f6fb2"
SETTINGS = {"hidden": (50,), "epochs": 300, "batch_size": 50, "learning_rate": 0.01}
REGIONS = ((-3.0, -1.0), (-1.0, 1.0), (1.0, 3.0))


def boundary(x: np.ndarray) -> np.ndarray:
    return np.sin(1.5 * x)


def region(number: int, size: int = 200) -> tuple[np.ndarray, np.ndarray]:
    """Points of one region of the plane; the class says whether they lie above a wave."""
    rng = np.random.default_rng(number)
    points = np.stack([rng.uniform(*REGIONS[number % 3], size), rng.uniform(-2, 2, size)], axis=1)
    return points.astype(np.float32), (points[:, 1] > boundary(points[:, 0])).astype(int)


def learnt_in_turn(method: str, **settings: object) -> list[vcl.Model]:
    """A model after each of the three batches."""
    with tempfile.TemporaryDirectory() as folder:
        model, after = vcl.Model(method, **{**SETTINGS, **settings}), []
        for number in range(3):
            model.learn(*region(number))
            model.save(Path(folder) / "model.vcl")
            after.append(vcl.Model.load(Path(folder) / "model.vcl"))
    return after


def plane() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    across, up = np.meshgrid(np.linspace(-5, 5, 120), np.linspace(-3, 3, 72))
    return across, up, np.stack([across.ravel(), up.ravel()], axis=1).astype(np.float32)


def draw_regions(methods: dict[str, list[vcl.Model]]) -> None:
    across, up, grid = plane()
    figure, axes = plt.subplots(len(methods), 3, figsize=(10, 2.1 * len(methods) + 0.6), sharex=True, sharey=True)
    for row, (name, models) in zip(axes, methods.items(), strict=True):
        for number, (axis, model) in enumerate(zip(row, models, strict=True)):
            shown = model.predict_proba(grid)[:, 1].reshape(across.shape)
            axis.contourf(across, up, shown, levels=np.linspace(0, 1, 11), cmap="RdBu_r", alpha=0.75)
            points, labels = region(number)
            axis.scatter(*points.T, s=5, c=np.where(labels == 1, ORANGE, BLUE), linewidths=0)
            line = np.linspace(-3, 3, 200)
            axis.plot(line, boundary(line), color="black", linewidth=0.8, linestyle="--")
            scores = [model.score(*region(99 + seen)) for seen in range(number + 1)]
            told = ", ".join(f"{100 * score:.0f}" for score in scores)
            axis.set_title(f"{name}, after batch {number + 1}: {told} %", fontsize=9)
            print(f"{name:12} after batch {number + 1}: {told} % on the regions so far")
    figure.tight_layout()
    save(figure, "tutorial-regions")


def draw_uncertainty(models: list[vcl.Model]) -> None:
    across, up, grid = plane()
    figure, axes = plt.subplots(1, 3, figsize=(10, 2.5), sharex=True, sharey=True)
    for number, (axis, model) in enumerate(zip(axes, models, strict=True)):
        epistemic = model.uncertainty(grid).epistemic.reshape(across.shape)
        shades = axis.contourf(across, up, epistemic, levels=np.linspace(0, 0.4, 11), cmap="viridis", extend="max")
        for seen in range(number + 1):
            axis.scatter(*region(seen)[0].T, s=2, c="white", linewidths=0, alpha=0.6)
        axis.set_title(f"after batch {number + 1}", fontsize=9)
    figure.colorbar(shades, ax=axes, label="epistemic (nats)", shrink=0.9)
    save(figure, "tutorial-uncertainty")


def save(figure: plt.Figure, name: str) -> None:
    figure.savefig(IMAGES / f"{name}.png", dpi=110, bbox_inches="tight", metadata={"Software": None})
    plt.close(figure)


def main() -> None:
    bayesian = learnt_in_turn("vcl", variance_rate=1.0, test_samples=200)
    draw_regions({"fine-tuning": learnt_in_turn("finetune"), "VCL": bayesian})
    draw_uncertainty(bayesian)


if __name__ == "__main__":
    main()
