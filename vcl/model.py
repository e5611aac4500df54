"""A model that can be kept: a learner, all it has learnt, and the names of its tasks and classes."""

import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar, TypeVar, cast

import numpy as np
from jaxtyping import Float

from vcl import learning
from vcl.checkpoints import DamagedCheckpoint, dump_tree, load_tree
from vcl.core import Examples, Learner, Scenario, StreamSpec, Task, check_inputs, doubled
from vcl.errors import VclError, choose
from vcl.evaluation import Prediction, Uncertainty
from vcl.files import write_atomically, writing
from vcl.inputs import (
    Label,
    Targets,
    as_inputs,
    as_label_array,
    as_labels,
    as_taught,
    check_as_many,
    label_from_json,
    label_to_json,
    new_labels,
)
from vcl.keeping import FORMAT, LearntTask, kept_like, read_model_facts, relabelled, with_task
from vcl.learning import Snapshot
from vcl.methods import METHODS, make, name_of, settings_of
from vcl.recording import recording
from vcl.runs.config import spec_from
from vcl.runs.legacy import remake
from vcl.runs.stored import StoredRun

DEFAULT_TASK = "default"

Same = TypeVar("Same", bound="Model")


class Model:
    """A continual learner with memory of its tasks and classes: learn, predict, save, load, learn on.

    Parameters
    ----------
    method : str or Learner, default="vcl"
        A method's name (`vcl methods` lists them) with its settings as keyword arguments, or a learner such as
        `vcl.VCL(hidden=(100,))`. By name, settings not given are those of the recipe `fast` for split benchmarks.
    seed : int, default=0
        The one source of randomness.
    shared_head : bool, default=False
        Whether one output layer answers for all tasks, so that the task need not be named to predict: for tasks
        that have the same classes (a domain stream) or bring new ones (a class stream). Otherwise every task has
        an output layer of its own.
    **settings
        Settings of the method.

    Attributes
    ----------
    classes_ : list
        All labels seen, in the order of the columns of `predict_proba`.
    tasks_ : list
        The names of the tasks learnt.
    log_ : list of dict
        One entry for each batch learnt.
    notes_ : dict
        Anything of your own that JSON can hold; saved with the model.

    Examples
    --------
    >>> import numpy as np
    >>> import vcl
    >>> rng = np.random.default_rng(0)
    >>> x = rng.normal(size=(200, 4))
    >>> model = vcl.Model(vcl.VCL(hidden=(10,), epochs=30, batch_size=32), seed=0)
    >>> model.learn(x, np.where(x[:, 0] > 0, "yes", "no"), task="march").tasks_
    ['march']
    >>> model.learn(x, np.where(x[:, 1] > 0, "cat", "dog"), task="april").classes_
    ['no', 'yes', 'cat', 'dog']
    >>> model.predict_proba(x[:3], task="march").shape
    (3, 4)
    >>> float(model.score(x, np.where(x[:, 0] > 0, "yes", "no"), task="march")) > 0.9
    True
    """

    kind: ClassVar[str] = "vcl.Model"
    methods: ClassVar[Mapping[str, type[Learner]]] = METHODS

    def __init__(
        self, method: str | Learner = "vcl", *, seed: int = 0, shared_head: bool = False, **settings: Any
    ) -> None:
        if isinstance(method, str):
            kind = self.methods[choose("method", method, self.methods)]
            self.learner = make(method, {**kind.recipes["fast"]["split"], **settings}, self.methods)
        elif settings:
            raise VclError(
                f"Settings ({', '.join(settings)}) go with a method's name; a learner has its own. Write "
                f'vcl.Model("vcl", …) or vcl.Model(vcl.VCL(…)).'
            )
        elif not isinstance(method, Learner):
            raise VclError(f"A method is a name, such as 'vcl', or a learner, but it is {method!r}.")
        else:
            self.learner = method
        if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < 2**31:
            raise VclError(f"The seed must be a whole number from 0 to {2**31 - 1}, but it is {seed!r}.")
        self.seed = seed
        self.shared_head = shared_head
        self.classes_: list[Label] = []
        self.log_: list[dict[str, Any]] = []
        self.notes_: dict[str, Any] = {}
        self._tasks: list[LearntTask] = []
        self._head_classes: list[list[int]] = []
        self._snapshot: Snapshot | None = None
        self._kept: list[Examples] = []

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({type(self.learner).__name__}, {len(self._tasks)} tasks, "
            f"{len(self.classes_)} classes, {sum(task.examples for task in self._tasks)} examples learnt)"
        )

    @property
    def tasks_(self) -> list[Label]:
        return [task.name for task in self._tasks]

    @property
    def snapshot(self) -> Snapshot:
        """The learner with its state: a pytree of arrays that is all it has learnt."""
        if self._snapshot is None:
            raise VclError("This model has not learnt anything: there is nothing to save. Call learn(x, y) first.")
        return self._snapshot

    # Learning

    def learn(
        self: Same,
        x: Any,
        y: Any,
        task: Any = None,
        *,
        progress: bool = False,
        checkpoint: str | Path | None = None,
        forgetting: float | None = None,
        stop: Callable[[], bool] | None = None,
    ) -> Same:
        """Learn from one more batch of examples.

        Parameters
        ----------
        x : array of shape (examples, …), or a DataFrame
            uint8 are pixels, scaled to [0, 1]; all other numbers are used as they are.
        y : sequence of length examples
            Labels of any hashable type. New classes are welcome.
        task : hashable, default=None
            The task's name. A known name continues that task from what was learnt of it; a new name is a new task.
            None stands for one task of its own.
        progress : bool, default=False
            Whether to show progress.
        checkpoint : str or Path, default=None
            A folder in which the training keeps checkpoints. Called again with the same data after an interruption,
            `learn` continues there, to the same bits. SIGTERM and SIGHUP then save and stop like Ctrl-C.
        forgetting : float, default=None
            How much of what was learnt before is given up for this batch, from 0 to 1, in place of the method's own
            setting: for data that have changed. Methods with a setting `forgetting` can.
        stop : callable, default=None
            Asked between epochs whether to save and stop, which is done as for Ctrl-C.

        Returns
        -------
        Model
            The model itself. Interrupted by Ctrl-C it stays as it was before the call.
        """
        name = DEFAULT_TASK if task is None else task
        if not isinstance(name, Hashable):
            raise VclError(f"A task's name must be hashable, such as a string, but it is a {type(name).__name__}.")
        tasks, index = with_task(self._tasks, name, self.shared_head)
        head = tasks[index].head
        outputs, classes, head_classes, new_outputs = self._targets(y, head)
        inputs = self._inputs(x, "The inputs")
        check_as_many(inputs, outputs)
        examples = Examples(inputs.reshape(len(inputs), -1), outputs)
        spec = self._spec(inputs, tasks, head_classes, len(outputs), bool(new_outputs))
        check_inputs(examples.inputs, "The data")
        kept, arriving = self._arriving(examples, head)
        spec = replace(spec, capacity=max(spec.capacity, doubled(self._capacity, len(arriving.labels))))
        before = self._snapshot or learning.begin(self.learner, spec, self.seed)
        if forgetting is not None:
            before = replace(before, learner=self._forgetting(forgetting))
        # Outputs that are new to the task have nothing to be continued.
        batch = 0 if new_outputs else tasks[index].batches
        began = time.monotonic()
        with recording(before, index, arriving, checkpoint, progress, stop) as fit:
            after = learning.observe(learning.grow(before, spec), Task(index, head, batch), arriving, fit)
        # All at once, so that a model is never half-way.
        tasks[index] = replace(
            tasks[index], batches=tasks[index].batches + 1, examples=tasks[index].examples + len(outputs)
        )
        self._snapshot, self._tasks, self._kept = replace(after, learner=self.learner), tasks, kept
        self.classes_, self._head_classes = classes, head_classes
        self.log_ = [
            *self.log_,
            {
                "task": name,
                "examples": len(outputs),
                "new_classes": [classes[number] for number in new_outputs],
                "steps": fit.steps,
                "seconds": round(time.monotonic() - began, 3),
            },
        ]
        return self

    def _targets(self, y: Any, head: int) -> Targets:
        """Labels as numbers of the head's outputs; new ones get new outputs."""
        labels = as_labels(y)
        classes = [*self.classes_, *new_labels(labels, self.classes_)]
        head_classes = [list(known) for known in self._head_classes] + [[]] * (head + 1 - len(self._head_classes))
        numbers = {label: number for number, label in enumerate(classes)}
        wanted = sorted({numbers[label] for label in labels})
        new_outputs = [number for number in wanted if number not in head_classes[head]]
        head_classes[head] = [*head_classes[head], *new_outputs]
        places = {number: place for place, number in enumerate(head_classes[head])}
        outputs = np.array([places[numbers[label]] for label in labels], np.int32)
        return Targets(outputs, classes, head_classes, new_outputs)

    def _forgetting(self, forgetting: float) -> Learner:
        """The learner, with another `forgetting`."""
        if not hasattr(self.learner, "forgetting"):
            raise VclError(
                f"{type(self.learner).__name__} has no setting `forgetting`; vcl, gvcl and kronecker-vcl have. "
                "Leave forgetting out, or use one of these."
            )
        learner: Any = self.learner
        return cast(Learner, replace(learner, forgetting=float(forgetting)))

    @property
    def _capacity(self) -> int:
        return self._snapshot.spec.capacity if self._snapshot else 0

    def _arriving(self, examples: Examples, head: int) -> tuple[list[Examples], Examples]:
        """What a method that needs all data so far keeps, and what the learner sees."""
        if not self.learner.joint:
            return [], examples
        kept = [*self._kept, examples._replace(groups=np.full(len(examples.labels), head, np.int32))]
        columns: Any = zip(*kept, strict=True)
        return kept, Examples(*(np.concatenate(column) for column in columns))

    def _inputs(self, x: Any, what: str) -> np.ndarray:
        """Inputs as an array of the model's type."""
        inputs = as_inputs(x, what)
        return as_taught(inputs, self._snapshot.spec, what) if self._snapshot else inputs

    def _spec(
        self,
        inputs: np.ndarray,
        tasks: Sequence[LearntTask],
        head_classes: Sequence[Sequence[int]],
        examples: int,
        new_classes: bool,
    ) -> StreamSpec:
        """Room for all that is known now. Tasks and examples double, so that few sizes are ever compiled for."""
        heads = tuple(task.head for task in tasks)
        allocated = 1 << (len(heads) - 1).bit_length()
        heads += tuple(0 if self.shared_head else index for index in range(len(heads), allocated))
        if self._snapshot:
            # A model opened from a run has as many as that run.
            heads += self._snapshot.spec.heads[len(heads) :]
        scenario: Scenario = "task"
        if self.shared_head:
            was_class = self._snapshot is not None and self._snapshot.spec.scenario == "class"
            scenario = "class" if was_class or (new_classes and self._snapshot is not None) else "domain"
        at_least = self._snapshot.spec.num_classes if self._snapshot else 2
        return StreamSpec(
            input_shape=inputs.shape[1:],
            input_dtype="uint8" if inputs.dtype == np.uint8 else "float32",
            num_classes=max(at_least, *(len(known) for known in head_classes)),
            heads=heads,
            capacity=doubled(self._capacity, examples),
            scenario=scenario,
        )

    # Predicting

    def predict_proba(self, x: Any, task: Label | None = None) -> Float[np.ndarray, "n c"]:
        """Probabilities of the classes, with columns in the order of `classes_`; 0 for those of other tasks.

        Parameters
        ----------
        x : array of shape (examples, …), or a DataFrame
        task : hashable, default=None
            Which task the examples belong to; needed where each has an output layer of its own.
        """
        return self.prediction(x, task).probabilities.astype(np.float64)

    def prediction(self, x: Any, task: Label | None = None, *, common_noise: bool = False) -> Prediction:
        """The predictive distribution over `classes_`, with its entropies.

        Parameters
        ----------
        x : array of shape (examples, …), or a DataFrame
        task : hashable, default=None
            Which task the examples belong to; needed where each has an output layer of its own.
        common_noise : bool, default=False
            Whether all examples meet the same draws of noise, so that the answer to one does not depend on the
            others that are asked with it.
        """
        place, classes, outputs = self.answering(task)
        rows = self._rows(x)
        found = learning.predict(self.snapshot, place, rows, classes=outputs, common_noise=common_noise)
        log_probs = np.full((len(rows), len(self.classes_)), -np.inf, found.log_probs.dtype)
        log_probs[:, classes] = found.log_probs
        return replace(found, log_probs=log_probs)

    def predict(self, x: Any, task: Label | None = None) -> np.ndarray:
        """The most probable class of each example."""
        best = self.predict_proba(x, task).argmax(axis=1)
        return as_label_array([self.classes_[number] for number in best])

    def uncertainty(self, x: Any, task: Label | None = None) -> Uncertainty:
        """How unsure the model is of each example, and why: total, aleatoric and epistemic entropy in nats."""
        prediction = self.prediction(x, task)
        return Uncertainty(prediction.total_entropy, prediction.aleatoric_entropy, prediction.epistemic_entropy)

    def score(self, x: Any, y: Any, task: Label | None = None) -> float:
        """Accuracy on labelled examples."""
        labels = as_labels(y)
        predicted = self.predict(x, task)
        check_as_many(predicted, labels)
        return float(np.mean([a == b for a, b in zip(predicted, labels, strict=True)]))

    def answering(self, task: Label | None = None) -> tuple[Task, list[int], np.ndarray | None]:
        """The task that answers, the classes of its outputs, and which outputs these are (None: all)."""
        snapshot, known = self.snapshot, self._known_task(task)
        classes = self._head_classes[head := self._tasks[known].head]
        some = np.arange(len(classes)) if len(classes) < snapshot.spec.num_classes else None
        return Task(known, head), classes, some

    def _rows(self, x: Any) -> np.ndarray:
        inputs = self._inputs(x, "The inputs")
        check_inputs(inputs, "The inputs")
        return inputs.reshape(len(inputs), -1)

    def _known_task(self, task: Label | None) -> int:
        if task is None:
            if len(self._tasks) > 1 and (not self.shared_head or self.learner.needs_task_id):
                raise VclError(
                    f"This model has learnt {len(self._tasks)} tasks that are answered separately. Say which one "
                    f"the examples belong to: task={self._tasks[0].name!r}, … Known: {self._names()}."
                )
            return 0
        if task not in self.tasks_:
            raise VclError(
                f"This model knows no task {task!r}. Known: {self._names()}. Learn it first: learn(x, y, task)."
            )
        return self.tasks_.index(task)

    def _names(self) -> str:
        return ", ".join(map(repr, self.tasks_))

    # Keeping

    def save(self, path: str | Path) -> None:
        """Write the model to one file: arrays and their description, with a checksum over all of it.

        The file is replaced as a whole or not at all. No code is stored, and loading runs none.
        """
        snapshot, path = self.snapshot, Path(path)
        facts = {
            "format": FORMAT,
            "kind": self.kind,
            "version": version("vcl"),
            "method": name_of(self.learner, self.methods) if self._has_a_name else None,
            "settings": self._settings(),
            "seed": self.seed,
            "shared_head": self.shared_head,
            "spec": asdict(snapshot.spec),
            "stages": snapshot.stages,
            "classes": [label_to_json(label) for label in self.classes_],
            "head_classes": self._head_classes,
            "tasks": [{**asdict(task), "name": label_to_json(task.name)} for task in self._tasks],
            "kept": [len(part.labels) for part in self._kept],
            "notes": self.notes_,
            "log": [relabelled(entry, label_to_json) for entry in self.log_],
        }
        with writing(path):
            write_atomically(path, dump_tree({"state": snapshot.state, "kept": self._kept}, facts))

    def _settings(self) -> dict[str, Any] | None:
        """None for a learner or a network of the user's own, which only the user can bring again."""
        try:
            return settings_of(self.learner) if self._has_a_name else None
        except VclError:
            return None

    @property
    def _has_a_name(self) -> bool:
        return type(self.learner) in self.methods.values()

    @classmethod
    def load(cls: type[Same], path: str | Path, *, method: Learner | None = None) -> Same:
        """Read a model that `save` wrote; it learns on as if it had never been away, to the same bits.

        Parameters
        ----------
        path : str or Path
        method : Learner, default=None
            The learner, where it or its network is of your own making: the file holds no code.
        """
        path = Path(path)
        facts = read_model_facts(path, cls.kind)
        if method is None and (facts["method"] is None or facts["settings"] is None):
            raise VclError(
                f"The model in {path} has a learner or a network that is not one of vcl's. Hand the learner over: "
                "vcl.Model.load(path, method=learner)."
            )
        learner = method or remake(facts, cls.methods)
        model = cls(learner, seed=facts["seed"], shared_head=facts["shared_head"])
        spec = spec_from(facts["spec"])
        like = {"state": learning.template(model.learner, spec), "kept": [kept_like(spec, n) for n in facts["kept"]]}
        try:
            tree, _ = load_tree(path, like)
        except DamagedCheckpoint as damage:
            raise VclError(f"{damage} Restore it from a copy.") from None
        model._snapshot = Snapshot(model.learner, spec, model.seed, tree["state"], facts["stages"])
        model._kept = [Examples(*map(np.asarray, part)) for part in tree["kept"]]
        model.classes_ = [label_from_json(label) for label in facts["classes"]]
        model._head_classes = facts["head_classes"]
        model._tasks = [LearntTask(**{**task, "name": label_from_json(task["name"])}) for task in facts["tasks"]]
        model.notes_ = facts["notes"]
        model.log_ = [relabelled(entry, label_from_json) for entry in facts["log"]]
        return model

    @staticmethod
    def from_run(run: str | Path | StoredRun) -> "Model":
        """The model that a benchmark run has learnt so far.

        Its tasks have the names that the run gives them, its classes are the benchmark's labels (within a task,
        where each has an output layer of its own).
        """
        stored = run if isinstance(run, StoredRun) else StoredRun.open(run)
        if stored.learner.joint:
            raise VclError(
                f"The run in {stored.path} is of joint training, which needs all examples again to learn on; a run "
                "does not keep them. Use vcl predict for its predictions."
            )
        snapshot = stored.snapshot()
        stages = stored.record["stages"][: snapshot.stages]
        model = Model(stored.learner, seed=stored.config.seed, shared_head=stored.spec.shares_head)
        model._snapshot = snapshot
        model.classes_ = list(range(stored.spec.num_classes))
        model._head_classes = [list(range(stored.spec.num_classes)) for _ in range(stored.spec.num_heads)]
        model._tasks = [
            LearntTask(name, stored.spec.heads[index], batches=stages.count(index))
            for index, name in enumerate(stored.record["task_names"])
            if index in stages
        ]
        return model
