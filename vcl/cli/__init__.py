"""The command line. `vcl --help` needs no jax: what does is imported by the command that needs it."""

import sys


def main() -> None:
    """Run the command line; Ctrl-C is acknowledged from here on, also while the rest is imported."""
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


__all__ = ["main"]
