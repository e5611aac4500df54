"""Runs on a Dask cluster, whose workers need not share the caller's disk.

A worker asks the caller for what the store has of its run, works in a folder of its own, and sends the files that
change: after each checkpoint, and about once a second. A worker that dies costs what it did since its last
checkpoint: Dask gives its run to another, which asks again. Messages travel through queues of the scheduler.
"""

import re
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

from vcl.errors import VclError
from vcl.files import write_atomically, writing
from vcl.runs.config import RunConfig
from vcl.runs.events import Event, Saved, Silent
from vcl.runs.folder import RunFolder
from vcl.runs.sweep import Place, Pools

SECONDS_TO_CONNECT = 10
SECONDS_TO_ANSWER = 120
SECONDS_BETWEEN_MESSAGES = 1.0
OURS = re.compile(r"run\.json|metrics\.jsonl|result\.json|(checkpoints|trace)/[\w-]+\.safetensors")
LAST = ("metrics.jsonl", "result.json")
"""What is written after all else: it tells of the rest."""

Files = dict[str, bytes]


def pack(folder: Path, known: dict[str, tuple[int, int]] | None = None) -> tuple[Files, list[str]]:
    """The files of a run that changed since they were `known`, and the names of all."""
    names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    names = [name for name in names if OURS.fullmatch(name)]
    files = {}
    for name in names:
        about = (folder / name).stat()
        stamp = (about.st_mtime_ns, about.st_size)
        if known is None or known.get(name) != stamp:
            files[name] = (folder / name).read_bytes()
            if known is not None:
                known[name] = stamp
    return files, names


def unpack(folder: Path, files: Files, names: Sequence[str]) -> None:
    """Write files of a run, and remove the checkpoints that it no longer has."""
    with writing(folder):
        for name in sorted(files, key=lambda name: (name in LAST, name)):
            if not OURS.fullmatch(name):
                raise VclError(f"A worker sent a file {name!r}, which is none of a run's.")
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            write_atomically(folder / name, files[name])
        for path in (folder / "checkpoints").glob("*.safetensors"):
            if f"checkpoints/{path.name}" not in names:
                path.unlink(missing_ok=True)


class Shipper(Silent):
    """Sends what changed in a worker's folder to the caller."""

    def __init__(self, folder: Path, send: Any, address: tuple[int, str]) -> None:
        self.folder, self.send, self.address = folder, send, address
        self.known: dict[str, tuple[int, int]] = {}
        self.sent = 0.0

    def receive(self, event: Event) -> None:
        if isinstance(event, Saved) or time.monotonic() - self.sent > SECONDS_BETWEEN_MESSAGES:
            self.ship()

    def ship(self) -> None:
        files, names = pack(self.folder, self.known)
        if files:
            self.send(("files", *self.address, files, names))
        self.sent = time.monotonic()


@dataclass(frozen=True)
class Mailbox:
    """What a worker is given: the name of the caller's queue."""

    name: str

    @contextmanager
    def place(self, number: int, name: str) -> Iterator[Place]:
        from distributed import Event as Flag
        from distributed import Queue, get_client

        client = get_client()
        attempt = uuid4().hex
        inbox, answers = Queue(self.name, client=client), Queue(f"{self.name}-{attempt}", client=client)
        flags = [Flag(flag, client=client) for flag in (f"{self.name}-stop", f"{self.name}-stop-{number}")]
        asked, checked = False, 0.0

        def stop() -> bool:
            nonlocal asked, checked
            if not asked and time.monotonic() - checked > SECONDS_BETWEEN_MESSAGES:
                asked, checked = any(flag.is_set() for flag in flags), time.monotonic()
            return asked

        inbox.put(("start", number, attempt))
        files, names = answers.get(timeout=SECONDS_TO_ANSWER)
        answers.close()
        with tempfile.TemporaryDirectory(prefix="vcl-worker-") as scratch:
            folder = Path(scratch) / name
            if files:
                unpack(folder, files, names)
            shipper = Shipper(folder, inbox.put, (number, attempt))
            try:
                yield Place(Path(scratch), stop, [shipper])
            finally:
                if folder.exists():
                    shipper.ship()


@dataclass
class DaskPool:
    """The workers of a Dask cluster."""

    client: Any
    executor: Executor
    link: Mailbox
    folders: list[RunFolder]
    locks: ExitStack
    attempts: dict[int, str] = field(default_factory=dict)
    """The newest attempt at each run; what others send is of no use."""
    _collecting: threading.Lock = field(default_factory=threading.Lock)

    def collect(self) -> None:
        """Take in all messages that have come."""
        from distributed import Queue

        inbox = Queue(self.link.name, client=self.client)
        with self._collecting:
            for message in inbox.get(batch=True):
                self.take(*message)

    def take(self, kind: str, number: int, attempt: str, *parts: Any) -> None:
        from distributed import Queue

        folder = self.folders[number]
        if kind == "start":
            if number not in self.attempts and folder.path.exists():
                self.locks.enter_context(folder.lock())
            self.attempts[number] = attempt
            Queue(f"{self.link.name}-{attempt}", client=self.client).put(pack(folder.path))
        elif self.attempts.get(number) == attempt:
            new = not folder.path.exists()
            unpack(folder.path, *parts)
            if new:
                self.locks.enter_context(folder.lock())

    def started(self, number: int) -> bool:
        return number in self.attempts

    def stop(self, number: int | None = None) -> None:
        from distributed import Event as Flag

        Flag(f"{self.link.name}-stop" + ("" if number is None else f"-{number}"), client=self.client).set()

    def explain(self, failure: BaseException) -> BaseException:
        from distributed.scheduler import KilledWorker

        if isinstance(failure, KilledWorker):
            return VclError(
                "Several workers of the cluster died with the same run, most often for lack of memory. What was "
                "saved is in the store: the same command continues from there."
            )
        return failure


def dask(address: str) -> Pools:
    """The cluster whose scheduler is at `address`, such as `tcp://127.0.0.1:8786`."""
    try:
        from distributed import Client
    except ImportError:
        raise VclError("--dask needs dask.distributed: pip install 'vcl[cluster]'.") from None
    check_address(address)

    @contextmanager
    def pool(root: Path, configs: Sequence[RunConfig]) -> Iterator[DaskPool]:
        try:
            client = Client(address, timeout=SECONDS_TO_CONNECT, set_as_default=False)
        except (OSError, ValueError, TimeoutError) as error:
            raise VclError(
                f"There is no Dask scheduler at {address!r} ({error}). Start one with `dask scheduler`, and name "
                "the address that it shows."
            ) from None
        with client, ExitStack() as locks:
            if not client.scheduler_info()["workers"]:
                message = (
                    f"The Dask scheduler at {address} has no workers yet: waiting for one (dask worker {address})."
                )
                print(message, file=sys.stderr, flush=True)
            folders = [RunFolder(root / config.name) for config in configs]
            executor = client.get_executor(pure=False)
            yield DaskPool(client, executor, Mailbox(f"vcl-{uuid4().hex}"), folders, locks)
            executor.shutdown(wait=False)

    return pool


def check_address(address: str) -> None:
    """Refuse what no scheduler can have as its address: a client would hang, and end with a traceback."""
    from distributed.comm.addressing import get_address_host_port

    try:
        host, port = get_address_host_port(address)
        host.encode("idna")  # The resolver does, and fails where a name cannot be one.
        sound = bool(host) and 0 < port < 2**16
    except ValueError:
        sound = False
    if not sound:
        raise VclError(
            f"--dask {address!r} is not the address of a Dask scheduler, which has a host and a port from 1 to "
            "65535, and before them tcp:// (or nothing), tls://, ws:// or wss://. Start one with `dask scheduler`, "
            "and name the address that it shows, such as tcp://127.0.0.1:8786."
        )
    if address.startswith("tls://") and not has_certificates():
        raise VclError(
            f"--dask {address!r} needs certificates, but Dask's configuration names none. Name them there, below "
            "distributed.comm.tls, or use a scheduler with a tcp:// address."
        )


def has_certificates() -> bool:
    """Whether Dask's configuration says with which certificates a client connects."""
    import dask as library
    from distributed import Security

    if library.config.get("distributed.client.security-loader", None):
        return True
    names = Security().get_tls_config_for_role("client")
    return bool(names["ca_file"] and names["cert"])
