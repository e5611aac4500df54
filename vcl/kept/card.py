"""A model card in Markdown: what a model is, what it learnt from, how well it does, and its limits."""

from typing import Any

from vcl.kept.model import KeptModel
from vcl.methods import settings_of

LIMITS = """
- Probabilities are calibrated on examples held out of the batches above. Data from elsewhere may be answered with
  unfounded confidence; the epistemic entropy and the mark `unfamiliar` are there to notice it.
- Thresholds of `--reject` and `--coverage` rest on the last batch of a task. They hold as long as new data comes
  from where that batch came from.
- Scaling and categories are those of the first batch. Later warnings are listed above.
- The model keeps no examples unless its method says so, but weights can still reveal something of the data.
""".strip()
LOG = {
    "batch": "batch",
    "time (UTC)": "time",
    "source": "source",
    "task": "task",
    "examples": "examples",
    "held out": "held_out",
    "accuracy before": "accuracy_before",
    "accuracy after": "accuracy_after",
    "log-likelihood after": "log_likelihood_after",
    "calibration error": "calibration_error",
}


def card(name: str, kept: KeptModel) -> str:
    """The card of a model; everything in it is read from the model."""
    model = kept.model
    footprint = model.learner.footprint(model.snapshot.state)
    parts = [
        f"# Model card: {name}",
        f"Method `{type(model.learner).__name__}` of vcl, seed {model.seed}. {footprint.parameters} parameters, "
        f"{footprint.stored_examples} stored examples. State SHA-256 `{kept.fingerprint}`.",
        "## Classes and tasks",
        f"Classes: {', '.join(f'`{label}`' for label in model.classes_)}. "
        f"Tasks: {', '.join(f'`{task}`' for task in model.tasks_)}"
        + (" (one output layer for all)." if model.shared_head else "."),
        "## Learning log",
        table(list(LOG), [[entry[name] for name in LOG.values()] for entry in kept.log]),
        *[f"- Warning in batch {e['batch']}: {text}" for e in kept.log for text in e["warnings"]],
        "## Data",
        columns(kept),
        "## Settings",
        table(["setting", "value"], [[k, v] for k, v in settings_of(model.learner).items()]),
        "## Limits",
        LIMITS,
    ]
    return "\n\n".join(parts) + "\n"


def columns(kept: KeptModel) -> str:
    if kept.encoder is None:
        return "Images, as pixels scaled to [0, 1]."
    rows: list[list[Any]] = [
        [c.name, c.kind, c.mean, c.std, c.low, c.high, "yes" if c.missing else "no", ", ".join(c.categories)]
        for c in kept.encoder.columns
    ]
    names = "Inputs of the network, in order: " + ", ".join(f"`{name}`" for name in kept.encoder.input_names) + "."
    heads = ["column", "kind", "mean", "standard deviation", "lowest", "highest", "missing", "categories"]
    return table(heads, rows) + "\n\n" + names


def table(heads: list[str], rows: list[list[Any]]) -> str:
    lines = [heads, ["---"] * len(heads), *([written(value) for value in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def written(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else str(value).replace("|", "\\|")
