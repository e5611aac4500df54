"""The one error that is meant to be read by a user, and words that are safe to show."""

import difflib
from collections.abc import Iterable


class VclError(Exception):
    """Something that the user can mend. The message says what was wrong, why, and what to do.

    The command line prints the message alone and exits with code 2; it never shows a traceback for it.
    """


def choose(kind: str, name: str, known: Iterable[str]) -> str:
    """Return `name` if it is known; otherwise explain which names are, the nearest first."""
    known = list(known)
    if name in known:
        return name
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.4) if isinstance(name, str) else []
    hint = f"Did you mean {near[0]!r}? " if near else ""
    raise VclError(f"There is no {kind} {name!r}. {hint}Known: {', '.join(known)}.")


def printable(text: str) -> str:
    """Text without characters that a terminal would obey; what comes from files and names may hold any.

    >>> print(printable("run" + chr(27) + "[31m"))
    run\\x1b[31m
    """
    return "".join(c if c in "\n\t" or c.isprintable() else repr(c)[1:-1] for c in text)
