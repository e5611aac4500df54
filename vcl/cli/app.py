"""The commands, and how their mistakes are reported."""

import errno
import os
import sys
from collections.abc import Callable
from dataclasses import fields
from itertools import pairwise

from cyclopts import App, CycloptsError, Parameter

from vcl.cli import compare, data, derive, inspect, learn, reproduce, run, sweep, uncertainty
from vcl.cli.console import fail
from vcl.cli.options import with_settings
from vcl.errors import VclError, choose

HELP = (
    "Variational continual learning: Bayesian neural networks that learn task after task without storing old "
    "data.\n\n"
    "Start with [bold]vcl run split-digits[/bold]: five tasks in a few seconds, no download. "
    "Then [bold]vcl run split-mnist[/bold], the paper's first benchmark. "
    "For your own data: [bold]vcl learn model.vcl data.csv --label COLUMN[/bold]."
)
COMMANDS: tuple[tuple[Callable[..., None], str, int], ...] = (
    (run.run, "run", 0),
    (learn.learn, "learn", 0),
    (compare.compare, "compare", 1),
    (reproduce.reproduce, "reproduce", 1),
    (sweep.sweep, "sweep", 1),
    (run.resume, "resume", 1),
    (run.extend, "extend", 1),
    (inspect.list_runs, "runs", 2),
    (inspect.show, "show", 3),
    (inspect.figures, "figures", 4),
    (derive.prune, "prune", 4),
    (learn.export, "export", 4),
    (inspect.report, "report", 4),
    (inspect.units, "units", 4),
    (derive.widen, "widen", 4),
    (uncertainty.uncertainty, "uncertainty", 4),
    (inspect.predict, "predict", 5),
    (data.list_methods, "methods", 6),
    (data.list_benchmarks, "benchmarks", 7),
)
"""Each command with its name and its place in the list."""


def make_app(tokens: list[str]) -> App:
    """The application; `vcl run` has the chosen method's settings as flags, if it is what `tokens` ask for."""
    app = App(
        name="vcl",
        help=HELP,
        help_format="rich",
        version_flags=["--version"],
        suppress_keyboard_interrupt=False,
        default_parameter=Parameter(negative=()),
    )
    for function, name, place in COMMANDS:
        command = run_with_settings(tokens) if name == "run" == next(iter(tokens), "") else function
        app.command(command, name=name, sort_key=place)
    data_app = App(name="data", help="List, fetch and verify the data sets.", help_format="rich")
    data_app.command(data.list_data, name="list")
    data_app.command(data.fetch)
    data_app.command(data.verify)
    app.command(data_app)
    return app


def start(tokens: list[str]) -> None:
    """Carry out a command line; a user's mistake is explained in a paragraph, with exit code 2."""
    asked = ["vcl", *tokens[:1], "--help"]
    try:
        app = make_app(tokens)
        asked = ["vcl", *(t for t in tokens[:1] if t in app), "--help"]
        app(tokens, exit_on_error=False, print_error=False, result_action="return_value")
        sys.stdout.flush()
    except VclError as error:
        fail(str(error))
    except CycloptsError as error:
        message = " ".join(str(error).split()).rstrip(".")
        fail(f"{message}{'' if message.endswith('?') else '.'} See `{' '.join(asked)}`.")
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(141)
    except OSError as error:
        if error.filename is None and error.errno in (errno.ENOSPC, errno.EBADF, errno.EIO):
            # What is still in the buffer would fail again at the end.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            fail(f"Standard output could not be written: {reason(error)}. Runs are saved: `vcl show`.")
        fail(f"{error.filename or 'A file'} could not be used: {reason(error)}. Check the name and the permissions.")
    except MemoryError as error:
        fail(f"There is not enough memory: {error or 'an array could not be allocated'}. Choose smaller settings.")


def reason(error: OSError) -> str:
    words = error.strerror or str(error)
    return words[:1].lower() + words[1:]


def run_with_settings(tokens: list[str]) -> Callable[..., None]:
    """`vcl run` with the settings of the method that the tokens name; its help has the recipe's defaults."""
    from vcl.benchmarks import STREAMS, settings_for
    from vcl.methods import METHODS
    from vcl.runs.config import default_recipe

    method = flag_value(tokens, "--method", "vcl")
    kind = METHODS[choose("method", method, METHODS)]
    online = int(flag_value(tokens, "--online", "0") not in ("", "0"))
    recipe = flag_value(tokens, "--recipe", default_recipe(kind.recipes, online))
    by_benchmark = kind.recipes[choose("recipe", recipe, kind.recipes)]
    benchmark = next((token for token in tokens if token in STREAMS), None)
    defaults = {field.name: field.default for field in fields(kind)}  # type: ignore[arg-type]
    defaults |= settings_for(by_benchmark, benchmark or "split-mnist")
    title = f"Settings of {method} (defaults: recipe {recipe} for {benchmark or 'split benchmarks'})"
    return with_settings(run.run, kind, defaults, title, list(kind.recipes))


def flag_value(tokens: list[str], flag: str, default: str) -> str:
    """The value of a flag, before the flags that depend on it are known.

    >>> flag_value(["run", "--method=ewc"], "--method", "vcl")
    'ewc'
    """
    given = [after for token, after in pairwise(tokens) if token == flag]
    given += [token.partition("=")[2] for token in tokens if token.startswith(f"{flag}=")]
    return given[-1] if given else default
