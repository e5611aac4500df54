"""Ctrl-C, SIGTERM and SIGHUP: acknowledged at once, never answered with a traceback.

Python runs signal handlers between bytecodes, which is late while a program compiles. Here a thread reads the
wake-up descriptor, so it learns of a signal at once: it acknowledges the first, and ends the process at the second.
"""

import atexit
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

STOPPED = 130
"""The exit code of a command that was stopped, as shells have it."""
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

Say = Callable[[str], None]


def to_stderr(message: str) -> None:
    """Without rich, which may not be imported yet, and without locks, which another thread may hold."""
    with suppress(OSError, ValueError):  # a terminal that was closed, or no standard error: nobody is there to read
        start = "\n" if os.isatty(2) else ""
        os.write(2, f"{start}vcl: {message}\n".encode())


class Interrupts:
    """The signals of one command, and what is to be done about them."""

    def __init__(self) -> None:
        self.say: Say = to_stderr
        self.worth_saving: Callable[[], bool] = lambda: False
        self.hint: Callable[[], str] = lambda: ""
        self.raised = False
        """Whether KeyboardInterrupt was raised."""
        self._saving: bool | None = None
        self._deciding = threading.RLock()
        self._heard = 0
        self._acknowledged = threading.Event()

    def asked(self) -> bool:
        """Whether the work is to save itself and stop."""
        return self._saving is True

    def end(self) -> None:
        """The last line of a command that KeyboardInterrupt has stopped."""
        self._acknowledged.wait(1.0)
        to_stderr(f"Stopped.{self.hint()}")

    def hear(self) -> None:
        """Answer one signal; called by the listening thread."""
        self._heard += 1
        if self._heard > 1:
            self.end_at_once()
        if self._decide():
            self.tell("Stopping…, saving what was learnt. Press Ctrl-C again to stop at once.")
        elif computes(sys._current_frames().get(threading.main_thread().ident or 0)):
            self.end_at_once()
        else:
            self.tell("Stopping…")
        self._acknowledged.set()

    def tell(self, message: str) -> None:
        """Acknowledge, if anybody can read it: SIGHUP comes when the terminal was closed."""
        with suppress(OSError):
            self.say(message)

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Interrupt the main thread, once, unless it is going to save what it has."""
        if not self._decide() and not self.raised:
            if computes(frame):
                self._acknowledged.wait(1.0)
                self.end_at_once()
            self.raised = True
            raise KeyboardInterrupt

    def end_at_once(self) -> None:
        """End the process. Every file is whole at any moment, so only the time since the last checkpoint is lost."""
        if "multiprocessing" in sys.modules:
            from multiprocessing import active_children

            for child in active_children():
                child.kill()
        with suppress(OSError, ValueError):
            if os.isatty(2):
                os.write(2, b"\x1b[?25h")  # a progress bar hides the cursor
        to_stderr(f"Stopped.{self.hint()}")
        os._exit(STOPPED)

    def _decide(self) -> bool:
        with self._deciding:
            if self._saving is None:
                self._saving = self.worth_saving()
            return self._saving


def computes(frame: FrameType | None) -> bool:
    """Whether jax is at work: an exception raised in the middle of it can crash the process."""
    while frame:
        if frame.f_globals.get("__name__", "").partition(".")[0] in ("jax", "jaxlib", "equinox"):
            return True
        frame = frame.f_back
    return False


_current = Interrupts()


@contextmanager
def listening() -> Iterator[Interrupts]:
    """Listen to signals, in the main thread; elsewhere nothing is changed."""
    global _current  # noqa: PLW0603
    if threading.current_thread() is not threading.main_thread():
        yield Interrupts()
        return
    now = _current = Interrupts()
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    wakeup = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    # What was ignored when the process started (nohup, a shell's background jobs) stays so.
    heard = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    handlers = {number: signal.signal(number, now.handle) for number in heard}
    unraisable, sys.unraisablehook = sys.unraisablehook, _never_ignored
    threading.Thread(target=_listen, args=(reader, now), daemon=True).start()
    try:
        yield now
    finally:
        # Registered last, so called first: an interrupt during the interpreter's own end would be a traceback.
        atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)
        sys.unraisablehook = unraisable
        for number, handler in handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(wakeup)
        os.close(writer)


def _listen(reader: int, interrupts: Interrupts) -> None:
    while numbers := os.read(reader, 64):
        for number in numbers:
            if number in SIGNALS:
                interrupts.hear()
    os.close(reader)


def _never_ignored(found: Any) -> None:
    """Python prints and drops what is raised inside a finaliser; an interrupt ends the process there too."""
    if issubclass(found.exc_type, KeyboardInterrupt):
        _current.end()
        os._exit(STOPPED)
    sys.__unraisablehook__(found)


@contextmanager
def saving(
    say: Say, hint: Callable[[], str], worth_saving: Callable[[], bool] = lambda: True
) -> Iterator[Callable[[], bool]]:
    """Let work stop by itself as soon as it has something worth saving; gives the probe that the work asks.

    `hint` says how to continue; it ends the last message of a command that is stopped.
    """
    now = _current
    now.say, now.hint, now.worth_saving = say, hint, worth_saving
    try:
        yield now.asked
        now.hint = lambda: ""
    finally:
        now.say, now.worth_saving = to_stderr, lambda: False
