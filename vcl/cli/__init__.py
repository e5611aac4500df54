"""The command line. `vcl --help` needs no jax: what does is imported by the command that needs it."""

import os
import sys


def main() -> None:
    """Run the command line; Ctrl-C is acknowledged from here on, also while the rest is imported."""
    fill_closed_streams()
    from vcl.cli.interrupts import STOPPED, listening

    with listening() as interrupts:
        try:
            from vcl.cli.app import start

            start(sys.argv[1:])
        except BaseException as error:
            # Whatever an interrupted library makes of the interrupt, it is not the user's concern.
            if isinstance(error, SystemExit) or not interrupts.raised:
                raise
            interrupts.end()
            sys.exit(STOPPED)


def fill_closed_streams() -> None:
    """Stand in for standard streams that the caller closed: the next file opened would get their number."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.dup2(os.open(os.devnull, os.O_RDWR), number)
            setattr(sys, name, open(number, "r" if number == 0 else "w", closefd=False))  # noqa: SIM115


__all__ = ["main"]
