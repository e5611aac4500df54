"""The flags that several commands share, and those that come from a learner's settings."""

import inspect
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from cyclopts import Group, Parameter, Token
from rich.markup import escape

from vcl.errors import VclError

MOST_RUNS = 10_000

STREAM = Group("Stream of tasks", sort_key=1)


def whole(type_: Any, tokens: Sequence[Token]) -> int:
    """A whole number; 2.5 epochs are a mistake, not 2."""
    try:
        return int(tokens[0].value)
    except ValueError:
        raise ValueError(f"{tokens[0].value!r} is not a whole number") from None


def finite(type_: Any, tokens: Sequence[Token]) -> float:
    """A number that can be computed with."""
    try:
        number = float(tokens[0].value)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"{tokens[0].value!r} is not a finite number")
    return number


def not_negative(type_: Any, tokens: Sequence[Token]) -> float:
    """A number of seconds."""
    number = finite(type_, tokens)
    if number < 0:
        raise ValueError(f"{tokens[0].value!r} is negative")
    return number


def widths(type_: Any, tokens: Sequence[Token]) -> tuple[int, ...]:
    """`100,100`: the units of each hidden layer."""
    try:
        return tuple(int(part) for token in tokens for part in token.value.split(","))
    except ValueError:
        raise ValueError("write layer widths as whole numbers with commas between, such as 100,100") from None


Out = Annotated[Path, Parameter(help="Folder that holds the run folders.")]
RunPath = Annotated[Path, Parameter(help="The run's folder.")]
DataDir = Annotated[Path | None, Parameter(help="Your own folder with the data files.")]
Benchmark = Annotated[str, Parameter(help="Name of the benchmark; `vcl benchmarks` lists them.")]
ScenarioFlag = Annotated[
    Literal["task", "domain", "class"] | None,
    Parameter(group=STREAM, help="One head per task, one shared head, or one head over all classes."),
]
NumTasks = Annotated[int | None, Parameter(group=STREAM, help="Number of tasks.", converter=whole)]
PermuteFirst = Annotated[bool, Parameter(group=STREAM, help="Permute the pixels of the first task too.")]
Online = Annotated[
    int,
    Parameter(
        group=STREAM,
        help="Number of examples per batch when tasks arrive in batches (0: whole tasks).",
        converter=whole,
    ),
]
ExamplesPerTask = Annotated[
    int,
    Parameter(
        group=STREAM,
        help="Number of training examples of each task, drawn at random (0: all).",
        converter=whole,
    ),
]
Validation = Annotated[
    float,
    Parameter(
        group=STREAM,
        help="Fraction of the training data to hold out and to evaluate on instead of the test data, for choosing "
        "settings.",
    ),
]
Trace = Annotated[
    bool,
    Parameter(
        help="Record the cost and the benefit of each unit during training (method vcl): why units are pruned."
    ),
]
Tolerance = Annotated[
    float | None,
    Parameter(
        help="Largest change of predictions (total variation) that removing all inactive units may cause; default "
        "0.0002."
    ),
]
After = Annotated[
    int | None,
    Parameter(
        help="Take the network after this stage, counted from 1 (default: the last). Stages are tasks, or batches "
        "with --online.",
        converter=whole,
    ),
]
CheckpointSeconds = Annotated[
    float, Parameter(help="Minimum time between checkpoints within a task, in seconds.", converter=not_negative)
]
Dask = Annotated[
    str | None,
    Parameter(
        help="Send the runs to the Dask cluster whose scheduler has this address, instead of local processes."
    ),
]
TensorBoardDir = Annotated[
    Path | None, Parameter(name="--tensorboard", help="Write the measurements for TensorBoard to this folder.")
]
Json = Annotated[bool, Parameter(help="Print only the result, as JSON, on standard output.")]
Quiet = Annotated[bool, Parameter(help="Print only the result, without progress.")]
Hidden = Annotated[
    tuple[int, ...] | None,
    Parameter(help="Units in each dense hidden layer, for all methods.", n_tokens=1, converter=widths),
]
NetworkFlag = Annotated[
    Literal["mlp", "conv"] | None,
    Parameter(help="Dense layers, or convolutions below them, for all methods."),
]


def check_counts(**counts: int) -> None:
    """Refuse numbers of seeds below 1, and negative numbers of anything else."""
    for name, count in counts.items():
        least = 1 if name == "seeds" else 0
        if count < least:
            raise VclError(f"--{name} must be at least {least}, but it is {count}.")
        if name == "seeds" and count > MOST_RUNS:
            raise VclError(
                f"--{name} {count} are more than {MOST_RUNS}. At two seconds for each run they would take "
                f"{count / 43200:,.1f} days on one core."
            )


def with_settings(
    command: Callable[..., None], kind: type, defaults: dict[str, Any], title: str, recipes: Sequence[str]
) -> Callable[..., None]:
    """`command` with the fields of a learner class as further flags; those not given are left out.

    The help shows the `defaults`, under `title`, and the names of the `recipes`.
    """

    def with_given(*args: Any, **kwargs: Any) -> None:
        command(*args, **{name: value for name, value in kwargs.items() if value is not None})

    group = Group(title, sort_key=2)
    recipe = Annotated[
        str | None,
        Parameter(help=f"Named settings: {', '.join(recipes)} (default: fast, or online with --online)."),
    ]
    common = [
        p.replace(annotation=recipe) if p.name == "recipe" else p
        for p in inspect.signature(command).parameters.values()
        if p.kind is not p.VAR_KEYWORD
    ]
    flags = [
        setting_flag(name, hint, defaults.get(name), group)
        for name, hint in get_type_hints(kind, include_extras=True).items()
        if get_origin(hint) is Annotated
    ]
    with_given.__doc__ = command.__doc__
    with_given.__signature__ = inspect.Signature([*common, *flags])  # type: ignore[attr-defined]
    with_given.__annotations__ = {p.name: p.annotation for p in (*common, *flags)}
    return with_given


def setting_flag(name: str, hint: Any, default: Any, group: Group) -> inspect.Parameter:
    """The flag of one setting, whose type is `Annotated[type, "help"]`."""
    from vcl.runs.comparison import choices, without_none

    annotation, explanation = get_args(hint)
    annotation = without_none(annotation)
    if found := choices(annotation):
        annotation = Literal[found]
    kind = tuple if get_origin(annotation) is tuple else annotation
    converter = {tuple: widths, int: whole, float: finite}.get(kind)
    flag = Parameter(
        help=escape(f"{sentence_case(explanation)}."),
        group=group,
        n_tokens=1 if converter is widths else None,
        converter=converter,
        show_default=None if default is None else lambda _: shown(default),
    )
    # Not `| None`: on the command line the word none would then be taken for a setting that was not given.
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[annotation, flag]
    )


def sentence_case(text: str) -> str:
    """With a capital where the first letter is one of a word's: λ stays λ.

    >>> sentence_case("passes over the data"), sentence_case("λ, the weight of the penalty")
    ('Passes over the data', 'λ, the weight of the penalty')
    """
    return text[0].upper() + text[1:] if text[0].isascii() else text


def shown(value: Any) -> str:
    """A setting's value as one would write it on the command line.

    >>> shown((100, 100)), shown(0.01)
    ('100,100', '0.01')
    """
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
