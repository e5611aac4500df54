"""Writing files so that they are whole or absent, whatever happens in between."""

import fcntl
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from vcl.errors import VclError


def write_atomically(path: Path, contents: bytes) -> None:
    """Write under a temporary name, force it to the disk, then rename: an earlier file survives any failure."""
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as out:
            out.write(contents)
            out.flush()
            os.fsync(out.fileno())
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


@contextmanager
def locked(path: Path, occupied: Callable[[], None]) -> Iterator[None]:
    """Hold the lock file at `path`; call `occupied` if another process has it, then wait.

    The lock goes with the process, however that ends. `occupied` may raise instead of waiting.
    """
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            occupied()
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Tell a failure to write as what it is: disk full, no permission, not a folder."""
    try:
        yield
    except OSError as error:
        raise VclError(
            f"Could not write {path}: {error.strerror or error}. What was saved before is intact. Make room or mend "
            "the permissions and try again (an interrupted run: `vcl resume`), or choose another place (--out)."
        ) from error
