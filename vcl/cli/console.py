"""Standard output and standard error."""

import json
import sys
from typing import Any, NoReturn

from rich.console import Console
from rich.markup import escape

from vcl.errors import printable

err = Console(stderr=True, highlight=False)


def out() -> Console:
    """Standard output as it is now: tests and pipes may have replaced it."""
    # Without a terminal nothing is folded to its width: names stay whole for whatever reads them.
    piped = not sys.stdout.isatty()
    return Console(highlight=False, soft_wrap=piped, width=10_000 if piped else None)


def say(message: str) -> None:
    """Plain text on standard error, beside the result."""
    err.print(escape(printable(message)), soft_wrap=True)


def fail(message: str, code: int = 2) -> NoReturn:
    """End the command with a message."""
    err.print(f"[bold red]vcl:[/bold red] {escape(printable(message))}", soft_wrap=True)
    sys.exit(code)


def show(text: str) -> None:
    """Plain text on standard output, such as a path."""
    out().print(printable(text), markup=False)


def print_json(value: Any) -> None:
    json.dump(value, sys.stdout, indent=2)
    sys.stdout.write("\n")
