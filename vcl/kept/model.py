"""A model of one's own data: `vcl.Model` with its columns, its held-out examples' numbers, and a log."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, TypedDict

import numpy as np

from vcl.checkpoints import DamagedCheckpoint, read_facts, tree_digest
from vcl.errors import VclError, choose
from vcl.evaluation import Prediction, expected_calibration_error
from vcl.inputs import Label, label_from_json, label_to_json
from vcl.keeping import check_facts
from vcl.kept.decisions import HeldOut, unfamiliar
from vcl.kept.drift import Drift, drift, river_is_there
from vcl.kept.encoder import Encoder
from vcl.kept.files import Batch, fingerprint, read
from vcl.methods import METHODS, default_method
from vcl.model import DEFAULT_TASK, Model

MOST_THREADS = 1024
STEPS = 2000
"""Steps of training that a small first batch gets; larger ones get at least `FEWEST_EPOCHS`."""
FEWEST_EPOCHS, MOST_EPOCHS = 20, 200
PREQUENTIAL = 5000
"""Examples of a batch that are predicted before it is learnt."""


def is_model(path: Path) -> bool:
    """Whether this is a file that holds a model, rather than a run's folder."""
    return path.is_file()


def check_part(test: float) -> None:
    if not 0 <= test < 1:
        raise VclError(f"--test is the part of a batch to hold out, from 0 to below 1, but it is {test}.")


def default_settings(method: str, examples: int) -> dict[str, Any]:
    """The method's settings for real streams, with batches and epochs for a first batch of this size."""
    kind = METHODS[choose("method", method, METHODS)]
    batch_size = 64 if examples < 5000 else 256
    epochs = math.ceil(STEPS * batch_size / max(examples, batch_size))
    return {
        "hidden": (100,),
        **kind.recipes["fast"].get("real", {}),
        "batch_size": batch_size,
        "epochs": max(FEWEST_EPOCHS, min(epochs, MOST_EPOCHS)),
    }


class EntryFacts(TypedDict):
    """A batch in the log."""

    batch: int
    time: str
    source: str
    sha256: str | None
    task: Any
    examples: int
    held_out: int
    new_classes: list[Any]
    accuracy_before: float | None
    log_likelihood_before: float | None
    accuracy_after: float | None
    log_likelihood_after: float | None
    calibration_error: float | None
    steps: int
    seconds: float
    warnings: list[str]
    state_sha256: str


class ColumnFacts(TypedDict):
    """A column of the encoder."""

    name: str
    kind: str
    mean: float
    std: float
    low: float
    high: float
    missing: bool
    categories: list[str]


class KeptFacts(TypedDict):
    """What is kept beside the model itself, as JSON."""

    encoder: list[ColumnFacts] | None
    label: str | None
    threads: int
    held_out: list[list[Any]]
    log: list[EntryFacts]


@dataclass
class KeptModel:
    """A model with all that is needed to learn from one more file, and to be trusted.

    Examples
    --------
    >>> import numpy as np
    >>> from vcl.kept import Batch, KeptModel
    >>> x = np.random.default_rng(0).normal(size=400)
    >>> batch = Batch("march.csv", {"x": x}, None, np.where(x > 0, "yes", "no").tolist(), "answer")
    >>> kept = KeptModel.begin(batch, seed=0, hidden=(10,), epochs=20)
    >>> kept.learn(batch)["accuracy_after"] > 0.9
    True
    >>> kept.predict(batch).log_probs.shape
    (400, 2)
    """

    model: Model
    encoder: Encoder | None
    """None for images."""
    label: str | None
    threads: int
    held_out: dict[Label, HeldOut]
    """By task: numbers of the examples held out of its last batch."""
    log: list[dict[str, Any]]

    @staticmethod
    def begin(
        batch: Batch,
        method: str | None = None,
        *,
        seed: int = 0,
        shared_head: bool = False,
        threads: int = 1,
        **settings: Any,
    ) -> "KeptModel":
        """A model for data like this first batch, not yet learnt; by default with `default_method`."""
        encoder = Encoder.fit(batch.columns) if batch.columns is not None else None
        method = method or default_method(len(encoder.input_names) if encoder else batch.pixels[0].size)  # type: ignore[index]
        known = {**default_settings(method, batch.size), **settings}
        model = Model(method, seed=seed, shared_head=shared_head, **known)
        return KeptModel(model, encoder, batch.label, threads, {}, [])

    def read(self, path: Path, *, ignore: Sequence[str] = (), labelled: bool = True) -> Batch:
        """One more batch from a file, with the same column of labels and the same categories as the first."""
        categories = self.encoder.categories if self.encoder else []
        return read(path, self.label, ignore=ignore, labelled=labelled, categories=categories)

    # Learning

    def learn(
        self,
        batch: Batch,
        task: Label | None = None,
        *,
        test: float = 0.1,
        progress: bool = False,
        checkpoint: Path | None = None,
        forgetting: float | Literal["drift"] | None = None,
        stop: Callable[[], bool] | None = None,
    ) -> dict[str, Any]:
        """Learn from one more batch; return its entry in the log.

        A part `test` of it is held out: accuracy before and after is measured on it, and decisions rest on it.
        `forgetting` is how much of what was learnt is given up first: a number, or as much as the alarm says.
        """
        if batch.labels is None:
            raise VclError(f"{batch.source} has no labels to learn from.")
        check_part(test)
        self._check_labels(batch)
        name = DEFAULT_TASK if task is None else task
        inputs = self.inputs(batch)
        warnings = self.encoder.warnings(batch.columns) if self.encoder and batch.columns and self.log else []
        rows = np.random.default_rng([self.model.seed, len(self.log)]).permutation(batch.size)
        held = rows[: min(round(test * batch.size), batch.size - 1)]
        taught = np.sort(rows[len(held) :])
        before = self._before(inputs, batch.labels, name, rows[:PREQUENTIAL])
        given_up = self._given_up(forgetting, before["drift"] if before else None)
        began = time.monotonic()
        self.model.learn(
            inputs[taught],
            [batch.labels[i] for i in taught],
            name,
            progress=progress,
            checkpoint=checkpoint,
            forgetting=given_up,
            stop=stop,
        )
        seconds = round(time.monotonic() - began, 2)
        entry: dict[str, Any] = {
            "batch": len(self.log) + 1,
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
            "source": batch.source,
            "sha256": fingerprint(Path(batch.source)) if Path(batch.source).exists() else None,
            "task": label_to_json(name),
            "examples": len(taught),
            "held_out": len(held),
            "new_classes": [label_to_json(label) for label in self.model.log_[-1]["new_classes"]],
            "accuracy_before": before and before["accuracy"],
            "log_likelihood_before": before and before["log_likelihood"],
            **self._after(inputs, batch.labels, name, held),
            "forgetting": given_up,
            "steps": self.model.log_[-1]["steps"],
            "seconds": seconds,
            "warnings": [*warnings, *(before["warnings"] if before else [])],
            "state_sha256": self.fingerprint,
        }
        self.log = [*self.log, entry]
        return entry

    def _check_labels(self, batch: Batch) -> None:
        known = {type(label) for label in self.model.classes_}
        odd = [label for label in batch.labels or [] if type(label) not in known]
        if known and odd:
            raise VclError(
                f"{batch.source} has the label {odd[0]!r}, but the labels so far were of another type, such as "
                f"{self.model.classes_[0]!r}. Write labels the same way in all files."
            )

    def _before(
        self, inputs: np.ndarray, labels: Sequence[Label], task: Label, rows: np.ndarray
    ) -> dict[str, Any] | None:
        """How the batch is predicted before it is learnt; None where nothing can be said of its task yet."""
        shared = self.model.shared_head and self.model.tasks_ and not self.model.learner.needs_task_id
        if task not in self.model.tasks_ and not shared:
            return None
        asked = task if task in self.model.tasks_ else None
        found = HeldOut.of(
            self.model.prediction(inputs[rows], asked, common_noise=True),
            self.numbers([labels[i] for i in rows]),
            most=PREQUENTIAL,
        )
        log_likelihood = np.log(np.maximum(found.label_probability, 1e-12))
        found_drift = Drift(False)
        if (last := self.held_out.get(self.place(task))) and last.size:
            found_drift = drift(np.log(np.maximum(last.label_probability, 1e-12)), log_likelihood) or found_drift
        return {
            "accuracy": float(found.correct.mean()),
            "log_likelihood": float(log_likelihood.mean()),
            "drift": found_drift,
            "warnings": [found_drift.text] if found_drift.alarm else [],
        }

    def _given_up(self, forgetting: float | Literal["drift"] | None, found: Drift | None) -> float | None:
        """How much is forgotten before a batch; None leaves it to the method."""
        if forgetting != "drift":
            return forgetting
        if not river_is_there():
            raise VclError("--forgetting drift needs the package river: pip install 'vcl[stream]'.")
        return found.forgetting if found is not None and found.alarm else None

    def _after(
        self, inputs: np.ndarray, labels: Sequence[Label], task: Label, held: np.ndarray
    ) -> dict[str, float | None]:
        """How held-out examples are predicted now; what decisions rest on is kept."""
        if not len(held):
            self.held_out.pop(self.place(task), None)
            return {"accuracy_after": None, "log_likelihood_after": None, "calibration_error": None}
        prediction = self.model.prediction(inputs[held], task, common_noise=True)
        numbers = self.numbers([labels[i] for i in held])
        found = HeldOut.of(prediction, numbers)
        self.held_out = {**self.held_out, self.place(task): found}
        known = numbers >= 0
        return {
            "accuracy_after": float(np.mean(prediction.classes == numbers)),
            "log_likelihood_after": float(np.mean(np.log(np.maximum(found.label_probability, 1e-12)))),
            "calibration_error": expected_calibration_error(prediction.probabilities[known], numbers[known])
            if known.any()
            else None,
        }

    def learnt_before(self, source: Path, task: Label | None) -> dict[str, Any] | None:
        """The entry of the log that tells of the same file and task: learnt twice, examples would count twice."""
        name = label_to_json(DEFAULT_TASK if task is None else task)
        found = fingerprint(source)
        return next((e for e in self.log if (e["sha256"], e["task"]) == (found, name)), None)

    def place(self, task: Label | None) -> Label:
        """Where the held-out examples of a task are: with one output layer, the last batch stands for all tasks."""
        return DEFAULT_TASK if self.model.shared_head or task is None else task

    def numbers(self, labels: Sequence[Label]) -> np.ndarray:
        """Labels as numbers of classes, -1 for those not known."""
        known = {label: number for number, label in enumerate(self.model.classes_)}
        return np.array([known.get(label, -1) for label in labels], np.int64)

    # Predicting

    def inputs(self, batch: Batch) -> np.ndarray:
        """A batch as inputs of the network; refused where it is not like what the model was taught."""
        if self.encoder is None:
            if batch.pixels is None:
                raise VclError(f"This model was taught images, but {batch.source} is a table.")
            return batch.pixels
        if batch.columns is None:
            raise VclError(f"This model was taught a table, but {batch.source} holds images.")
        return self.encoder.encode(batch.columns).astype(np.float32)

    def predict(self, batch: Batch, task: Label | None = None) -> Prediction:
        """The predictive distribution for each example, over `model.classes_`."""
        return self.model.prediction(self.inputs(batch), task, common_noise=True)

    def unfamiliar(self, batch: Batch, prediction: Prediction, task: Label | None = None) -> np.ndarray:
        """Which examples are unlike what was learnt: by the network's own epistemic entropy, or by their columns.

        Both are needed: far out along a direction that decides, a ReLU network is sure of itself.
        """
        by_network = unfamiliar(self.held_out.get(self.place(task)), prediction.epistemic_entropy)
        if self.encoder is None or batch.columns is None:
            return by_network
        return by_network | self.encoder.outside(batch.columns)

    def task_named(self, text: str | None) -> Label | None:
        """The task that was written on a command line, where names are text."""
        return next((task for task in self.model.tasks_ if str(task) == text), text)

    # Keeping

    @property
    def fingerprint(self) -> str:
        """Of all arrays learnt: equal exactly when they are equal to the bit."""
        return tree_digest(self.model.snapshot.state)

    def save(self, path: Path) -> None:
        """One file: arrays and JSON, no code."""
        self.model.notes_["kept"] = {
            "encoder": self.encoder and self.encoder.to_json(),
            "label": self.label,
            "threads": self.threads,
            "held_out": [[label_to_json(task), held.to_json()] for task, held in self.held_out.items()],
            "log": self.log,
        }
        self.model.save(path)

    @staticmethod
    def threads_of(path: Path) -> int:
        """How many threads the model was taught with, before jax is loaded."""
        if not path.exists():
            raise VclError(f"There is no file {path}. `vcl learn {path} FILE` makes a model.")
        try:
            threads = (read_facts(path).get("notes", {}).get("kept") or {}).get("threads")
        except DamagedCheckpoint as damage:
            raise VclError(f"{damage} Is it a model that `vcl learn` wrote?") from None
        except AttributeError as error:
            raise VclError(f"{path} was not written by vcl ({error}). Restore it from a copy.") from None
        # What is read here is not checked yet; `load` refuses what is not right.
        return threads if type(threads) is int and 0 < threads <= MOST_THREADS else 1

    @staticmethod
    def load(path: Path) -> "KeptModel":
        model = Model.load(path)
        kept = model.notes_.get("kept")
        if kept is None:
            raise VclError(
                f"{path} holds a model that was saved from Python, without columns and log. Use vcl.Model.load."
            )
        check_facts(kept, KeptFacts, path)
        for entry in kept["log"]:
            check_facts(entry, EntryFacts, path)
        for column in kept["encoder"] or []:
            check_facts(column, ColumnFacts, path)
        try:
            encoder = Encoder.from_json(kept["encoder"]) if kept["encoder"] is not None else None
            held = {label_from_json(task): HeldOut.from_json(value) for task, value in kept["held_out"]}
        except (KeyError, TypeError, ValueError) as error:
            raise VclError(f"{path} was not written by vcl ({error}). Restore it from a copy.") from None
        return KeptModel(model, encoder, kept["label"], kept["threads"], held, kept["log"])
