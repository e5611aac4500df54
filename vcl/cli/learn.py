"""vcl learn and vcl export; and what predict, show and report do with a model instead of a run."""

import csv
import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from vcl.cli import model_tables
from vcl.cli.console import fail, print_json, say
from vcl.cli.console import out as stdout
from vcl.cli.interrupts import STOPPED, saving
from vcl.cli.options import Hidden, Json, Quiet, finite, whole
from vcl.errors import VclError

if TYPE_CHECKING:
    import numpy as np

    from vcl.evaluation import Prediction
    from vcl.kept import KeptModel
    from vcl.kept.decisions import HeldOut

CONTINUE = "Continue with the same command."

ModelPath = Annotated[Path, Parameter(help="The model's file, such as churn.vcl.")]
Ignored = Annotated[
    tuple[str, ...],
    Parameter(help="A column to leave out (first batch only); repeat for more.", negative=(), n_tokens=1),
]


def learn(
    model: ModelPath,
    /,
    *files: Annotated[
        Path,
        Parameter(
            help="CSV, Parquet, .npz (arrays x and y), .npy (labels beside it in NAME-labels.npy), or a folder with "
            "one folder of images for each class."
        ),
    ],
    label: Annotated[str | None, Parameter(help="The column with the labels (first batch only).")] = None,
    ignore: Ignored = (),
    task: Annotated[str | None, Parameter(help="Name of the task that the files belong to.")] = None,
    test: Annotated[
        float,
        Parameter(help="Part of each batch to hold out, to measure on and to base decisions on.", converter=finite),
    ] = 0.1,
    shared_head: Annotated[
        bool,
        Parameter(help="One output layer for all tasks, which then need not be named to predict (new models only)."),
    ] = False,
    method: Annotated[
        str | None,
        Parameter(
            help="The method; `vcl methods` lists them (new models only). By default kronecker-vcl-recall, or vcl "
            "for more than 2,000 inputs."
        ),
    ] = None,
    hidden: Hidden = None,
    epochs: Annotated[
        int | None, Parameter(help="Passes over each batch (new models only).", converter=whole)
    ] = None,
    seed: Annotated[
        int | None, Parameter(help="The one source of randomness (new models only).", converter=whole)
    ] = None,
    threads: Annotated[
        int | None, Parameter(help="Number of cores (default: 1, or as before).", converter=whole)
    ] = None,
    forgetting: Annotated[
        float | Literal["drift"] | None,
        Parameter(
            help="How much of what was learnt to give up before each of these batches, from 0 to 1; or drift: only "
            "when the alarm sounds, and as much as the likelihood fell.",
        ),
    ] = None,
    again: Annotated[
        bool, Parameter(help="Learn a file also if it was learnt before: its examples count twice.")
    ] = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Teach a model one more batch of your own data: each file in turn. The model is made if it is not there.

    Columns, categories and scaling are those of the first batch. The model keeps no examples, only what it has
    learnt. Every batch is logged: `vcl show MODEL`. A command that was interrupted can be repeated as it was: files
    that were learnt are left out, and the one under way continues from its checkpoint.

    Example: [bold]vcl learn churn.vcl january.csv --label churned[/bold], later [bold]vcl learn churn.vcl
    february.csv[/bold]
    """
    from vcl import runs
    from vcl.files import locked, writing
    from vcl.kept import KeptModel, read
    from vcl.kept.model import check_part
    from vcl.runs.config import check_threads

    if not files:
        raise VclError("Name at least one file to learn from. See `vcl learn --help`.")
    check_threads(threads)
    check_part(test)
    fixed = {"method": method, "hidden": hidden, "epochs": epochs, "seed": seed, "label": label}
    runs.prepare_jax(threads or (KeptModel.threads_of(model) if model.exists() else 1))
    with writing(model):
        model.parent.mkdir(parents=True, exist_ok=True)
        lock, checkpoints = (model.with_name(f".{model.name}.{part}") for part in ("lock", "checkpoints"))
        with locked(lock, lambda: say(f"Waiting for another process that teaches {model}.")):
            kept = KeptModel.load(model) if model.exists() else None
            if kept:
                check_same(model, kept, fixed, ignore, shared_head)
            entries = []
            for number, file in enumerate(files):
                batch = kept.read(file, ignore=ignore) if kept else read(file, label, ignore=ignore)
                if kept is None:
                    settings = {"hidden": hidden, "epochs": epochs}
                    kept = KeptModel.begin(
                        batch,
                        method,
                        seed=seed or 0,
                        shared_head=shared_head,
                        threads=threads or 1,
                        **{name: value for name, value in settings.items() if value is not None},
                    )
                named = kept.task_named(task)
                if not again and (before := kept.learnt_before(file, named)):
                    say(f"{file} is what batch {before['batch']} taught already, so it is left out; see --again.")
                    continue
                with stopping(model, left=len(files) - number) as stop:
                    entry = kept.learn(
                        batch,
                        named,
                        test=test,
                        progress=not (quiet or json),
                        checkpoint=checkpoints,
                        forgetting=forgetting,
                        stop=stop,
                    )
                    kept.save(model)
                entries.append(entry)
                for warning in entry["warnings"]:
                    say(f"Warning: {file}: {warning}")
                if stop() and number + 1 < len(files):
                    fail(f"Stopped; {model} has learnt {file}. {CONTINUE}", STOPPED)
            clean(checkpoints)
    if json:
        return print_json(entries)
    return stdout().print(model_tables.log_table(entries, f"{model}: what it learnt"))


def check_same(
    path: Path, kept: "KeptModel", fixed: dict[str, Any], ignored: tuple[str, ...], shared_head: bool
) -> None:
    """Refuse to decide again what was decided when the model was made; a command may be repeated as it was."""
    from vcl.methods import name_of

    learner = kept.model.learner
    known = {"method": name_of(learner), "hidden": getattr(learner, "hidden", None), "label": kept.label}
    known |= {"epochs": getattr(learner, "epochs", None), "seed": kept.model.seed}
    given = [name for name, value in fixed.items() if value is not None and value != known[name]]
    columns = {column.name for column in kept.encoder.columns} if kept.encoder else set()
    given += ["ignore"] * bool(columns & set(ignored)) + ["shared-head"] * (shared_head > kept.model.shared_head)
    if given:
        raise VclError(
            f"{path} is there already, and --{given[0]} is decided when a model is made. Leave it out, or name "
            "a new model file."
        )


@contextmanager
def stopping(model: Path, left: int) -> Iterator[Callable[[], bool]]:
    """Let a signal end the learning of a batch with a checkpoint, and say how to go on."""
    with saving(say, lambda: f" {CONTINUE}") as stop:
        try:
            yield stop
        except KeyboardInterrupt as interrupt:
            what = "this batch" if left == 1 else f"this batch and {left - 1} more"
            # One that was answered between epochs says so; another one came while jax was at work.
            saved = ", and checkpoints are saved" if interrupt.args else ""
            fail(f"Stopped; {model} is as it was before {what}{saved}. {CONTINUE}", STOPPED)


def clean(checkpoints: Path) -> None:
    """Remove the folder of checkpoints, and what killed processes left half-written in it, but nothing of others."""
    from vcl.files import is_temporary

    if checkpoints.is_dir():
        for path in checkpoints.iterdir():
            if path.name.startswith(".learn-") and is_temporary(path.name):
                path.unlink(missing_ok=True)
        with suppress(OSError):
            checkpoints.rmdir()


def show_model(path: Path, *, as_json: bool) -> None:
    """What a model has learnt, from what, and how well it did."""
    kept = opened(path)
    if as_json:
        return print_json(model_tables.model_json(kept))
    stdout().print(model_tables.log_table(kept.log, f"{path}: what it learnt"))
    return stdout().print(model_tables.facts(kept), highlight=False)


def predict_model(
    path: Path,
    file: Path,
    *,
    task: str | None,
    output: Path | None,
    json: bool,
    reject: float | None,
    coverage: float | None,
) -> None:
    """Predict the examples of a file; print them, or write them to a CSV or .npz file."""
    from vcl.files import write_output, writing
    from vcl.kept.decisions import unfamiliar_warning

    kept = opened(path)
    named = kept.task_named(task)
    batch = kept.read(file, labelled=False)
    prediction = kept.predict(batch, named)
    strange = kept.unfamiliar(batch, prediction, named)
    columns_far = kept.encoder.warnings(batch.columns) if kept.encoder and batch.columns else []
    for text in (*columns_far, unfamiliar_warning(strange)):
        if text:
            say(f"Warning: {text}")
    columns = decided(kept, prediction, kept.place(named), reject, coverage)
    columns["unfamiliar"] = strange
    if batch.labels is not None:
        correct = kept.numbers(batch.labels) == prediction.classes
        say(f"Accuracy on the {batch.size} labelled examples of {file}: {100 * correct.mean():.2f} %")
    if output:
        keep(path, output)
        contents = as_npz(columns) if output.suffix == ".npz" else as_csv(columns).encode()
        with writing(output):
            write_output(output, contents)
        say(f"Predictions for {batch.size} examples: {output}")
    if json:
        print_json([{name: plain(values[i]) for name, values in columns.items()} for i in range(batch.size)])
    elif not output:
        stdout().print(model_tables.predictions_table(columns))


def decided(
    kept: "KeptModel", prediction: "Prediction", place: Any, reject: float | None, coverage: float | None
) -> dict[str, Any]:
    """Columns of an answer: the class, its probability, entropies, all probabilities, and decisions asked for."""
    import numpy as np

    from vcl.kept.decisions import check_enough, reject_below, set_above

    names = [str(label) for label in kept.model.classes_]
    probabilities = prediction.probabilities
    columns: dict[str, Any] = {
        "class": np.array([names[number] for number in prediction.classes]),
        "probability": probabilities.max(axis=1),
    }
    if reject is not None:
        held = check_enough(kept.held_out.get(place), "--reject")
        threshold = reject_below(held, reject)
        answered = columns["probability"] >= threshold
        columns["decision"] = np.where(answered, columns["class"], "don't know")
        say(f"Answered: {answered.sum()} of {len(answered)}, {basis(held, threshold)}")
    if coverage is not None:
        least = set_above(check_enough(kept.held_out.get(place), "--coverage"), coverage)
        within = probabilities >= least
        columns["set"] = np.array(["|".join(np.array(names)[row]) for row in within])
        say(
            f"Sets hold classes with a probability of at least {least:.4f}; "
            f"their mean size is {within.sum(axis=1).mean():.2f}."
        )
    columns |= {
        "total_entropy": prediction.total_entropy,
        "aleatoric_entropy": prediction.aleatoric_entropy,
        "epistemic_entropy": prediction.epistemic_entropy,
    }
    return columns | {f"p({name})": probabilities[:, number] for number, name in enumerate(names)}


def basis(held: "HeldOut", threshold: float) -> str:
    """What a threshold rests on: with few held-out examples above it, the risk is only roughly known."""
    if threshold == float("inf"):
        return "since no threshold makes the risk so low on the held-out examples."
    above = held.confidence >= threshold
    wrong = above & ~held.correct
    return (
        f"those with a probability of at least {threshold:.4f}. Of the {held.size} held-out examples, {above.sum()} "
        f"would be answered, {wrong.sum()} of them wrongly."
    )


def plain(value: Any) -> Any:
    """A number of NumPy's as JSON has it."""
    return value.item() if hasattr(value, "item") else value


def as_csv(columns: dict[str, "np.ndarray"]) -> str:
    """Columns as CSV, numbers to six digits."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(columns)
    for row in zip(*columns.values(), strict=True):
        writer.writerow(f"{value:.6g}" if value.dtype.kind == "f" else plain(value) for value in row)
    return file.getvalue()


def as_npz(columns: dict[str, "np.ndarray"]) -> bytes:
    import numpy as np

    file = io.BytesIO()
    np.savez(file, allow_pickle=False, **columns)
    return file.getvalue()


def report_model(path: Path, out: Path) -> None:
    """One HTML file about a model: the log, calibration, and what rejecting costs."""
    from vcl.files import write_output, writing
    from vcl.report.model_page import render

    keep(path, out)
    with writing(out):
        write_output(out, render(path.name, opened(path)).encode())
    say(f"Report: {out}")


def export(
    model: ModelPath,
    /,
    *,
    format: Annotated[Literal["onnx", "card"], Parameter(help="A network for other runtimes, or a model card.")],
    output: Annotated[Path | None, Parameter(help="File to write (default: beside the model).")] = None,
    task: Annotated[str | None, Parameter(help="Task to answer for; needed if each has an output layer.")] = None,
) -> None:
    """Export a model: to ONNX, with its uncertainty in the graph, or as a model card in Markdown.

    The ONNX graph takes encoded inputs, named in the model card, and returns log probabilities and entropies. It has
    the same draws of noise in it as `vcl predict`, so the answers agree.
    """
    from vcl.files import write_output, writing

    kept = opened(model)
    if format == "card":
        from vcl.kept.card import card

        contents, suffix = card(model.name, kept).encode(), ".md"
    else:
        from vcl.kept.onnx import export_onnx

        contents, suffix = export_onnx(kept.model, kept.task_named(task)), ".onnx"
    output = output or model.with_suffix(suffix)
    keep(model, output)
    with writing(output):
        write_output(output, contents)
    say(f"Exported: {output}")


def keep(model: Path, output: Path) -> None:
    """Refuse to write over the model itself."""
    if output.resolve() == model.resolve():
        raise VclError(f"{output} is the model itself. Name another file to write.")


def opened(path: Path) -> "KeptModel":
    """The model of a file, with as many threads as it was taught with."""
    from vcl import runs
    from vcl.kept import KeptModel

    runs.prepare_jax(KeptModel.threads_of(path))
    return KeptModel.load(path)
