"""Writing files so that they are whole or absent, whatever happens in between; reading what others may have put."""

import errno
import fcntl
import hashlib
import os
import re
import socket
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from vcl.errors import VclError

TEMPORARY = "vcl-tmp"
MOST_BYTES = 1 << 30
"""Of a file that is read at once: larger ones are not ours."""
WITHOUT_LOCKS = {errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL}
"""How file systems without locks answer, such as NFS without its lock service."""


def write_atomically(path: Path, contents: bytes) -> None:
    """Write under a temporary name, force it to the disk, then rename: an earlier file survives any failure.

    A symbolic link is written through. What is not a regular file is not replaced: see `write_output`.
    """
    path = Path(os.path.realpath(path))
    mode = _mode(path)
    if mode is not None and not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "it is not a regular file, so it is not replaced")
    _remove_leftovers(path)
    handle, name = tempfile.mkstemp(prefix=f"{_prefix(path)}{os.getpid()}-", suffix=f".{TEMPORARY}", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as out:
            out.write(contents)
            out.flush()
            os.fsync(out.fileno())
        os.chmod(name, 0o644 if mode is None else stat.S_IMODE(mode))
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def write_output(path: Path, contents: bytes) -> None:
    """Write where the user asked for it: into a device or a FIFO, or as a file that is whole or absent."""
    mode = _mode(path)
    if mode is None or stat.S_ISREG(mode) or stat.S_ISDIR(mode):
        write_atomically(path, contents)
    else:
        with path.open("wb") as out:
            out.write(contents)


def append_durably(path: Path, contents: bytes) -> None:
    """Add to the end of a file, and force it to the disk."""
    is_new = _mode(path) is None
    # A FIFO that nobody reads is refused, not waited for.
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK, 0o644)
    with os.fdopen(handle, "ab") as out:
        out.write(contents)
        out.flush()
        if stat.S_ISREG(os.fstat(out.fileno()).st_mode):
            os.fsync(out.fileno())
    if is_new:
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Force a folder's list of files to the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def open_regular(path: Path, most: int = MOST_BYTES) -> Iterator[BinaryIO]:
    """A regular file to read; a FIFO or a device would have no end, and is refused."""
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
        about = os.fstat(file.fileno())
        if not stat.S_ISREG(about.st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file")
        if about.st_size > most:
            raise OSError(errno.EFBIG, f"it has {about.st_size / 1e6:.0f} MB, and at most {most / 1e6:.0f} are read")
        yield file


def read_regular(path: Path) -> bytes:
    """The contents of a regular file."""
    with open_regular(path) as file:
        return file.read()


def is_temporary(name: str) -> bool:
    """Whether a file name is one that `write_atomically` uses before it renames.

    >>> is_temporary(".run.json.1a2b3c4d-17-x_7.vcl-tmp"), is_temporary(".gitignore")
    (True, False)
    """
    # The second form is that of version 0.1.
    ours = r"\.(run\.json|result\.json|metrics\.jsonl|[\w-]+\.safetensors)\.\w{8}"
    return re.fullmatch(rf"\..*\.{TEMPORARY}|{ours}", name) is not None


def _prefix(path: Path) -> str:
    """Of the temporary names for `path` by processes of this machine. Names have a largest length."""
    return f".{path.name[:40]}.{machine()}-"


def machine() -> str:
    """A short name of this machine: processes of others cannot be asked whether they are alive."""
    return hashlib.sha256(socket.gethostname().encode()).hexdigest()[:8]


def _remove_leftovers(path: Path) -> None:
    """What killed processes of this machine left half-written of the same file."""
    prefix = _prefix(path)
    for name in os.listdir(path.parent):
        if name.startswith(prefix) and name.endswith(f".{TEMPORARY}"):
            process = name[len(prefix) :].partition("-")[0]
            if process.isdecimal() and not is_alive(int(process)):
                path.with_name(name).unlink(missing_ok=True)


def is_alive(process: int) -> bool:
    """Whether a process of this machine is alive."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _mode(path: Path) -> int | None:
    with suppress(FileNotFoundError):
        return path.stat().st_mode
    return None


def _to_stderr(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


@contextmanager
def locked(path: Path, occupied: Callable[[], None], say: Callable[[str], None] = _to_stderr) -> Iterator[None]:
    """Hold the lock file at `path`; call `occupied` if another process has it, then wait.

    The lock goes with the process, however that ends. `occupied` may raise instead of waiting.
    """
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK, 0o644), "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            occupied()
            fcntl.flock(lock, fcntl.LOCK_EX)
        except OSError as error:
            if error.errno not in WITHOUT_LOCKS:
                raise
            say(f"{path.parent} is on a file system without locks: let one process at a time work there.")
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
