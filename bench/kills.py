"""SIGKILL of real processes at random moments, over all commands that write; used by bench/faults.py kills.

A case is a command, or a call from Python. It is carried out undisturbed, then killed at random moments and repeated
until it is through: the results must be equal, and nothing may be left behind, neither files nor processes.
Processes are forked from this one, which has imported everything but never computed: that makes starting cheap.
"""

import contextlib
import hashlib
import json
import os
import random
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import numpy as np
from platformdirs import user_cache_path

import vcl
import vcl.analysis
import vcl.kept
import vcl.model
from vcl import cli, recording, runs
from vcl.cli import app
from vcl.runs import execute

SAME = ("accuracy_matrix", "scores", "untrained_accuracy", "steps", "state_sha256")
OFTEN = ("--checkpoint-seconds", "0", "--quiet")
SMALL = ("--hidden", "4", "--epochs", "12", "--num-tasks", "2", "--threads", "1", *OFTEN)
AT_MOST = 4
"""Kills of one command before it is let through."""
PATIENCE = 600.0


class Wrong(Exception):
    """A promise that was not kept."""


@dataclass(frozen=True)
class Case:
    """Something that writes into a folder, and what is to be compared in the end."""

    name: str
    work: Callable[[Path], None]
    """Called in a process of its own, in an empty folder, and again in the same one after a kill."""
    outcome: Callable[[Path], Any]
    environment: dict[str, str] = field(default_factory=dict)


def command(*words: object) -> Callable[[Path], None]:
    """A command line. Killed after its output had come to be, it says how to go on, and that is done."""

    def work(folder: Path) -> None:
        sys.argv = ["vcl", *map(str, words)]
        try:
            cli.main()
        except SystemExit as ending:
            told = (folder / "log").read_text() if ending.code == 2 else ""
            if "vcl resume" not in told and "vcl show" not in told:
                raise
            if "vcl resume" in told:
                sys.argv = ["vcl", "resume", told.rpartition("vcl resume ")[2].split()[0].rstrip(".;"), "--quiet"]
                cli.main()

    return work


def cases(scratch: Path, methods: Sequence[str]) -> list[Case]:
    """Every command that writes, on the smallest work there is."""
    run, plan, months = prepared(scratch)
    from_cache = {"VCL_CACHE_DIR": "cache", "VCL_DATA_DIR": str(user_cache_path("vcl"))}
    run_small = ("run", "split-digits", *SMALL, "--method")
    two = ("--methods", "finetune:epochs=12,si:epochs=12", "--hidden", 4, "--num-tasks", 2)
    fresh_model = ("--label", "label", "--hidden", 4, "--epochs", 12, "--quiet")
    return [
        *(Case(f"run {name}", command(*run_small, name), stored) for name in methods),
        Case("run --seeds", command(*run_small, "finetune", "--seeds", 2, "--jobs", 2), stored),
        Case("compare", command("compare", "split-digits", *two, "--jobs", 2, *OFTEN), stored),
        Case("sweep", command("sweep", plan, "--jobs", 2, *OFTEN), stored),
        Case("extend", command("extend", run, "--num-tasks", 3, "--out", "longer", *OFTEN), stored),
        Case("prune", command("prune", run, "--out", "pruned"), stored),
        Case("widen", command("widen", run, "--hidden", 6, "--out", "wider"), stored),
        Case("report", command("report", run, "--out", "page.html"), pages),
        Case("figures", command("figures", run, "--out", "figures"), pages),
        Case("vcl learn", command("learn", "m.vcl", *months, *fresh_model), learnt),
        Case("Model.learn", model_learn, learnt),
        Case("data fetch", command("data", "fetch", "mnist"), fetched, from_cache),
    ]


def prepared(scratch: Path) -> tuple[Path, Path, list[Path]]:
    """A complete run, the file of a sweep, and two files of one's own data."""
    plan = scratch / "plan.toml"
    plan.write_text(
        'benchmark = "split-digits"\nmethod = "finetune"\nstream = {num_tasks = 2}\n'
        "settings = {hidden = [4]}\n[grid]\nepochs = [8, 12]\n"
    )
    months = [scratch / "one.csv", scratch / "two.csv"]
    for number, path in enumerate(months):
        rows = np.random.default_rng(number).normal(size=(60, 2))
        path.write_text("a,b,label\n" + "".join(f"{a:.4f},{b:.4f},{'yes' if a > 0 else 'no'}\n" for a, b in rows))
    place = scratch / "before"
    process = Process(command("run", "split-digits", *SMALL, "--test-samples", 2), place, {})
    if process.wait(PATIENCE) != 0:
        raise Wrong(f"The first run failed: {process.told}")
    return next(place.glob("runs/*")), plan, months


def model_learn(folder: Path) -> None:
    """From Python: two batches, each with checkpoints, saved after each."""
    path = folder / "m.vcl"
    model = vcl.Model.load(path) if path.exists() else vcl.Model("finetune", hidden=(4,), epochs=12, batch_size=16)
    for number in range(len(model.log_), 2):
        x = np.random.default_rng(number).normal(size=(60, 3))
        model.learn(x, (x[:, 0] > 0).astype(int), f"task {number}", checkpoint=folder / "checkpoints")
        model.save(path)
    with contextlib.suppress(FileNotFoundError):
        (folder / "checkpoints").rmdir()


# What is compared


def stored(folder: Path) -> Any:
    """The results of all runs below a folder, and the names of their files."""
    found = {}
    for path in sorted(folder.rglob("run.json")):
        place = runs.RunFolder(path.parent)
        names = sorted(
            str(p.relative_to(path.parent)) for p in path.parent.rglob("*") if p.is_file() and p.name != "lock"
        )
        result: Any = place.result
        states = [sha256(p) for p in sorted(place.checkpoints.iterdir())] if result is None else []
        found[path.parent.name] = (result and {key: result[key] for key in SAME}, names, states)
    if not found:
        raise Wrong(f"There are no runs in {folder}.")
    return found


def pages(folder: Path) -> Any:
    """Every file that was written; pictures have times in them, so of these the name counts."""
    files = [p for p in folder.rglob("*") if p.is_file() and p.name != "log"]
    return {str(p.relative_to(folder)): sha256(p) if p.suffix == ".html" else "" for p in sorted(files)}


def learnt(folder: Path) -> Any:
    """What a model has learnt, batch by batch."""
    from vcl.checkpoints import _read as read_all  # the arrays alone: nothing is computed in this process
    from vcl.checkpoints import digest, read_facts

    facts = read_facts(folder / "m.vcl")
    _, tensors = read_all(folder / "m.vcl", with_tensors=True)
    log = [{name: entry[name] for name in ("task", "examples", "steps")} for entry in facts["log"]]
    return digest(tensors), log


def fetched(folder: Path) -> Any:
    return {path.name: sha256(path) for path in sorted((folder / "cache").rglob("*")) if path.is_file()}


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def left_behind(folder: Path) -> list[str]:
    """Temporary files, and folders of commands that are over. Empty lock files stay: removing one is a race."""
    hidden = [path for path in folder.rglob(".*") if not path.name.endswith("lock")]
    return sorted(path.name for path in (*hidden, *folder.rglob("*vcl-tmp"), *folder.rglob("*partial*")))


# Processes


class Process:
    """A forked process that works in a folder, in a session of its own."""

    def __init__(self, work: Callable[[Path], None], folder: Path, environment: dict[str, str]) -> None:
        folder.mkdir(exist_ok=True)
        self.log = folder / "log"
        self.pid = os.fork()
        if self.pid == 0:
            self._child(work, folder, environment)

    def _child(self, work: Callable[[Path], None], folder: Path, environment: dict[str, str]) -> None:
        code = 1
        try:
            os.setsid()
            log = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
            os.dup2(log, 1)
            os.dup2(log, 2)
            os.chdir(folder)
            os.environ.update(environment)
            sys.modules["__main__"] = ModuleType("__main__")  # workers of a sweep would import this file
            recording.SECONDS_BETWEEN_CHECKPOINTS = 0.0
            work(folder)
            code = 0
        except SystemExit as ending:
            code = int(ending.code or 0)
        except BaseException as error:  # the parent reads it in the log
            print(f"Traceback: {type(error).__name__}: {error}", file=sys.stderr)
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def wait(self, seconds: float) -> int | None:
        """The exit code; None if it has not ended in time."""
        end = time.monotonic() + seconds
        while True:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            if ended:
                return os.waitstatus_to_exitcode(status)
            if time.monotonic() > end:
                return None
            time.sleep(0.005)

    def kill(self) -> None:
        """Kill it alone; whatever it started must end by itself."""
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        end = time.monotonic() + PATIENCE
        while alive := in_session(self.pid):
            if time.monotonic() > end:
                raise Wrong(f"Processes were left behind: {alive}")
            time.sleep(0.05)

    @property
    def told(self) -> str:
        return self.log.read_text(errors="replace")


def in_session(leader: int) -> list[int]:
    """The processes of a session that are alive."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            if int(fields[3]) == leader and fields[0] != "Z":
                found.append(int(folder.name))
    return found


@contextlib.contextmanager
def cheap_start(scratch: Path) -> Iterator[None]:
    """Programs of any size are kept on disk, where all processes find them."""
    import sklearn.datasets  # noqa: F401

    def prepare(threads: int) -> None:
        os.environ["NPROC"] = str(threads)
        jax.config.update("jax_compilation_cache_dir", os.environ.get("VCL_FAULTS_CACHE", str(scratch / "compiled")))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)

    before = execute.prepare_jax
    app.make_app(["run", "split-digits"])
    execute.prepare_jax = runs.prepare_jax = prepare
    try:
        yield
    finally:
        execute.prepare_jax = runs.prepare_jax = before


def killed_until_through(case: Case, folder: Path, seconds: float, rng: random.Random) -> int:
    """Kill at random moments, then repeat; return how often it was killed."""
    kills = 0
    while True:
        process = Process(case.work, folder, case.environment)
        limit = rng.uniform(0.0, 1.1) * seconds if kills < AT_MOST else PATIENCE
        code = process.wait(limit)
        if code is None and kills == AT_MOST:
            process.kill()
            raise Wrong(f"{case.name} took more than {PATIENCE:.0f} s")
        if code is None:
            process.kill()
            kills += 1
            continue
        if code or "Traceback" in process.told:
            raise Wrong(f"{case.name} ended with code {code} after {kills} kills: {process.told}")
        return kills


def kills(count: int, rng: random.Random, scratch: Path, methods: Sequence[str]) -> Counter[str]:
    """`count` kills in turn over all cases; each case is compared with itself undisturbed."""
    counts: Counter[str] = Counter()
    expected: dict[str, tuple[Any, float]] = {}
    with cheap_start(scratch):
        known = cases(scratch, methods)
        number = 0
        while sum(counts.values()) < count:
            case = known[number % len(known)]
            if case.name not in expected:
                for attempt in ("cold", "warm"):
                    folder = scratch / f"{attempt}-{number}"
                    began = time.monotonic()
                    process = Process(case.work, folder, case.environment)
                    if code := process.wait(PATIENCE):
                        raise Wrong(f"{case.name} ends undisturbed with code {code}: {process.told}")
                    if code is None:
                        process.kill()
                        raise Wrong(f"{case.name} takes more than {PATIENCE:.0f} s undisturbed")
                    expected[case.name] = case.outcome(folder), time.monotonic() - began
                    shutil.rmtree(folder)
            outcome, seconds = expected[case.name]
            folder = scratch / str(number)
            counts[case.name] += killed_until_through(case, folder, seconds, rng)
            found = json.dumps([case.outcome(folder), left_behind(folder)], default=str)
            if found != json.dumps([outcome, []], default=str):
                raise Wrong(f"{case.name}: another result after kills, or left behind: {found}, not {outcome}")
            shutil.rmtree(folder)
            print(f"{sum(counts.values()):5d} kills, {case.name}: equal", flush=True)
            number += 1
    return counts
