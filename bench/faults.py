"""Faults, injected and counted: every one must be told or repaired, and none may change an answer in silence.

    python bench/faults.py writes                      killed inside every write of a run, at four points of each
    python bench/faults.py full                        the disk is full at every write
    python bench/faults.py flips --count 1000          bit flips in every file, read by the commands
    python bench/faults.py damage --count 300          truncation, lost lines, swapped files, FIFOs, …
    python bench/faults.py arguments --count 1000      command lines with odd values
    python bench/faults.py kills --count 20            SIGKILL of real processes at random moments, over all commands

Each prints how often what happened, and ends with code 1 if anything went wrong.
"""

import argparse
import contextlib
import errno
import io
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vcl import model, recording, runs
from vcl.cli.app import start
from vcl.errors import VclError
from vcl.files import write_atomically
from vcl.methods import METHODS
from vcl.runs import folder as folders

TINY = {"hidden": (6,), "epochs": 3, "batch_size": 64}
SAME = ("accuracy_matrix", "scores", "untrained_accuracy", "steps", "state_sha256")
TASKS = 2


class Wrong(Exception):
    """A promise that was not kept."""


class Killed(BaseException):
    """The end of the process, as far as files are concerned."""


def config(method: str = "vcl", **changes: Any) -> runs.RunConfig:
    options = runs.StreamOptions(num_tasks=TASKS)
    settings = {**TINY, **({"test_samples": 2} if method == "vcl" else {}), **changes}
    if method in ("progress-compress", "feedback-replay", "generative-replay", "icarl", "icarl-labels"):
        settings.pop("batch_size")
    return runs.configure("split-digits", method, threads=1, stream=options, **settings)


def same(one: Any, other: Any) -> bool:
    return all(one[key] == other[key] for key in SAME)


# Killed inside a write


class Disk:
    """Stands in for writing, and fails at one write: by a kill at some point of it, or because the disk is full."""

    def __init__(self, at: int | None = None, point: str = "") -> None:
        self.at, self.point, self.count = at, point, 0

    def write(self, path: Path, contents: bytes) -> None:
        self.fail(path, contents, path.with_name(f".{path.name}.0-1-x.vcl-tmp"))
        write_atomically(path, contents)
        self.done()

    def append(self, path: Path, contents: bytes) -> None:
        self.fail(path, contents, path)
        with path.open("ab") as out:
            out.write(contents)
        self.done()

    def fail(self, path: Path, contents: bytes, partial: Path) -> None:
        if self.count != self.at or self.point == "after":
            return
        if self.point == "full":
            raise OSError(errno.ENOSPC, "No space left on device")
        part = {"before": 0, "half": len(contents) // 2, "whole": len(contents) - (partial == path)}[self.point]
        if part:
            with partial.open("ab") as out:
                out.write(contents[:part])
        raise Killed

    def done(self) -> None:
        if self.count == self.at and self.point == "after":
            raise Killed
        self.count += 1

    @contextlib.contextmanager
    def mounted(self) -> Iterator["Disk"]:
        places = [(folders, "write_atomically"), (recording, "write_atomically"), (model, "write_atomically")]
        before = [(place, name, getattr(place, name)) for place, name in places]
        before.append((folders, "append_durably", folders.append_durably))
        try:
            for place, name, _ in before:
                setattr(place, name, self.append if name == "append_durably" else self.write)
            yield self
        finally:
            for place, name, function in before:
                setattr(place, name, function)


def writes(methods: Sequence[str], scratch: Path, stride: int = 1, points: Sequence[str] = ()) -> Counter[str]:
    """A run killed at every `stride`-th write, at each point of it, and resumed."""
    counts: Counter[str] = Counter()
    for method in methods:
        chosen = config(method)
        with Disk().mounted() as disk:
            expected = runs.run(chosen, scratch / f"{method}-whole", seconds_between_checkpoints=0.0)
        for at in range(0, disk.count, stride):
            for point in points or ("before", "half", "whole", "after"):
                root = scratch / f"{method}-{at}-{point}"
                with Disk(at, point).mounted(), contextlib.suppress(Killed, VclError if point == "full" else Killed):
                    runs.run(chosen, root, seconds_between_checkpoints=0.0)
                found = runs.run(chosen, root, seconds_between_checkpoints=0.0)
                left = [p.name for p in root.rglob("*") if p.name.endswith("vcl-tmp")]
                if not same(found, expected) or left:
                    raise Wrong(f"{method}, write {at}, {point}: another result, or left behind: {left}")
                counts[f"{method}: {point}"] += 1
                shutil.rmtree(root)
    return counts


# Damage


def finished(scratch: Path) -> tuple[Path, Path]:
    """Two complete runs, of which one has a trace."""
    from vcl.analysis.trace import UnitTracer

    chosen = [config(), config(learning_rate=0.02)]
    for one in chosen:
        runs.run(one, scratch / "runs", trace=UnitTracer)
    np.save(scratch / "images.npy", np.linspace(0, 255, 5 * 64).reshape(5, 64).astype(np.uint8))
    return scratch / "runs" / chosen[0].name, scratch / "runs" / chosen[1].name


def command(*words: object) -> tuple[int, str, str]:
    """What a command answers, in this process: the code, standard output, standard error."""
    out, err = io.StringIO(), io.StringIO()
    code = 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            start([str(word) for word in words])
        except SystemExit as ending:
            code = int(ending.code or 0)
    return code, out.getvalue(), err.getvalue()


def readings(run: Path, images: Path) -> dict[str, Callable[[], Any]]:
    """Ways to read a run; each gives an answer, or raises VclError or ends with code 2."""
    from vcl.analysis import trace

    def stored(use: Callable[[runs.StoredRun], Any]) -> Callable[[], Any]:
        return lambda: use(runs.StoredRun.open(run))

    def shown(*words: object) -> Callable[[], Any]:
        def call() -> Any:
            code, out, err = command(*words)
            if code == 0 and "Skipped" not in err:
                return out
            if "Traceback" in err or code not in (0, 2):
                raise Wrong(f"{words}: {err}")
            raise VclError(err)

        return call

    return {
        "record": stored(lambda r: (r.record, r.config, r.spec)),
        "result": stored(lambda r: r.result),
        "events": stored(lambda r: r.folder.events()),
        "states": stored(lambda r: [str(r.state(n)) + str(r.snapshot(n).stages) for n in (1, 2)]),
        "task ends": stored(lambda r: r.task_ends()),
        "trace": stored(lambda r: str(trace.read(r.folder))),
        "show": shown("show", run, "--json"),
        "runs": shown("runs", run.parent, "--json"),
        "predict": shown("predict", run, "--input", images, "--task", 1, "--json"),
    }


def judge(name: str, read: Callable[[], Any], expected: Any, counts: Counter[str], what: str) -> None:
    """Read what was damaged: the same answer, or a clear refusal."""
    began = time.monotonic()
    try:
        found = read()
    except VclError as error:
        if "\n\n" in str(error).strip():
            raise Wrong(f"{what}, {name}: more than one paragraph: {error}") from None
        counts["refused"] += 1
    except Exception as error:
        raise Wrong(f"{what}, {name}: {type(error).__name__}: {error}") from error
    else:
        if str(found) != str(expected):
            raise Wrong(f"{what}, {name}: another answer")
        counts["same answer"] += 1
    if time.monotonic() - began > 60:
        raise Wrong(f"{what}, {name}: took more than a minute")


def files_of(run: Path) -> list[Path]:
    return [path for path in sorted(run.rglob("*")) if path.is_file() and path.name != "lock"]


def flips(count: int, rng: random.Random, scratch: Path) -> Counter[str]:
    """A bit flipped in one file, then one way to read the run."""
    run, _ = finished(scratch)
    ways = readings(run, scratch / "images.npy")
    expected = {name: read() for name, read in ways.items()}
    counts: Counter[str] = Counter()
    paths = files_of(run)
    for number in range(count):
        path, name = paths[number % len(paths)], rng.choice(list(ways))
        good = path.read_bytes()
        # Headers and JSON are short beside arrays: half of the flips are near the start.
        place = rng.randrange(min(len(good), 2000) if rng.random() < 0.5 else len(good))
        path.write_bytes(good[:place] + bytes([good[place] ^ (1 << rng.randrange(8))]) + good[place + 1 :])
        try:
            judge(name, ways[name], expected[name], counts, f"{path.name}, byte {place}")
        finally:
            path.write_bytes(good)
    return counts


def structural(run: Path, other: Path, rng: random.Random) -> dict[str, Callable[[Path], None]]:
    """Ways to damage a file as a whole."""

    def lines(change: Callable[[list[bytes]], Any]) -> Callable[[Path], None]:
        def damage(path: Path) -> None:
            parts = path.read_bytes().splitlines(keepends=True)
            path.write_bytes(b"".join(change(parts)))

        return damage

    def replaced(make: Callable[[Path], Any]) -> Callable[[Path], None]:
        def damage(path: Path) -> None:
            path.unlink()
            make(path)

        return damage

    def lose(parts: list[bytes]) -> list[bytes]:
        place = rng.randrange(len(parts))
        return parts[:place] + parts[place + 1 :]

    def shuffle(parts: list[bytes]) -> list[bytes]:
        return rng.sample(parts, len(parts))

    return {
        "truncated": lambda path: os.truncate(path, rng.randrange(path.stat().st_size)),
        "emptied": lambda path: os.truncate(path, 0),
        "longer": lambda path: path.write_bytes(path.read_bytes() + b"{}\n"),
        "a line lost": lines(lose),
        "lines in another order": lines(shuffle),
        "a line twice": lines(lambda parts: [*parts, rng.choice(parts)]),
        "removed": replaced(lambda path: None),
        "a folder": replaced(lambda path: path.mkdir()),
        "a fifo": replaced(os.mkfifo),
        "zeros": lambda path: path.write_bytes(bytes(path.stat().st_size)),
        "of another run": lambda path: shutil.copy(other / path.relative_to(run), path),
        "of another stage": lambda path: shutil.copy(rng.choice(list(path.parent.glob("*.*"))), path),
    }


def damage(count: int, rng: random.Random, scratch: Path) -> Counter[str]:
    """A file damaged as a whole, then one way to read the run."""
    run, other = finished(scratch)
    ways = readings(run, scratch / "images.npy")
    expected = {name: read() for name, read in ways.items()}
    # A run that was not complete, or has lost a trace as a whole, is read as what it is.
    fewer = {"result.json": ("states", "task ends", "record", "trace", "predict", "events")}
    counts: Counter[str] = Counter()
    whole = scratch / "whole"
    shutil.copytree(run, whole)
    for number in range(count):
        path = files_of(whole)[number % len(files_of(whole))]
        path = run / path.relative_to(whole)
        kinds = structural(run, other, rng)
        kind, name = rng.choice(list(kinds)), rng.choice(list(ways))
        try:
            with contextlib.suppress(shutil.SameFileError):
                kinds[kind](path)
            incomplete = path.name == "result.json" and not path.exists()
            lost_snapshot = path.parent.name == "trace" and not path.exists()
            if not lost_snapshot and not (incomplete and name not in fewer["result.json"]):
                judge(name, ways[name], expected[name], counts, f"{path.name} {kind}")
        finally:
            shutil.rmtree(run)
            shutil.copytree(whole, run)
    return counts


# Arguments

VALUES = (
    "0",
    "-1",
    "1.5",
    "nan",
    "inf",
    "1e400",
    "abc",
    "",
    " ",
    "1" * 30,
    "[/b]",
    "\x1b[31m",
    "é",
    "--",
    "x" * 300,
    "1,2",
)
FLAGS = (
    "--seed",
    "--seeds",
    "--jobs",
    "--threads",
    "--num-tasks",
    "--online",
    "--validation",
    "--out",
    "--scenario",
)
FLAGS += ("--recipe", "--method", "--epochs", "--hidden", "--learning-rate", "--batch-size", "--test-samples")
FLAGS += ("--prior-std", "--coreset", "--schedule", "--network", "--channels", "--checkpoint-seconds", "--data-dir")


def arguments(count: int, rng: random.Random, scratch: Path) -> Counter[str]:
    """Command lines with odd values; those that are valid are carried out."""
    run, _ = finished(scratch)
    small = ["--epochs", "1", "--hidden", "4", "--num-tasks", "1", "--threads", "1", "--quiet"]
    others = [
        ["show", run],
        ["runs"],
        ["predict", run, "--input", scratch / "images.npy"],
        ["units", run],
        ["widen", run],
    ]
    counts: Counter[str] = Counter()
    os.chdir(scratch)
    for _ in range(count):
        odd = [word for _ in range(rng.choice((1, 1, 2))) for word in (rng.choice(FLAGS), rng.choice(VALUES))]
        if rng.random() < 0.7:
            words = ["run", "split-digits", *small, *odd]
        else:
            words = [
                *rng.choice(others),
                rng.choice([*FLAGS, "--after", "--task", "--tolerance"]),
                rng.choice(VALUES),
            ]
        began = time.monotonic()
        try:
            code, _, err = command(*words)
        except Exception as error:
            raise Wrong(f"{words}: {type(error).__name__}: {error}") from error
        if code not in (0, 2) or "Traceback" in err or time.monotonic() - began > 60:
            raise Wrong(f"{words}: code {code} after {time.monotonic() - began:.0f} s: {err}")
        if code == 2 and err[err.index("vcl: ") :].strip().count("\n") > 0:
            raise Wrong(f"{words}: more than one paragraph: {err}")
        counts["refused" if code else "accepted"] += 1
    return counts


# Real kills


def kills(count: int, rng: random.Random, scratch: Path, methods: Sequence[str]) -> Counter[str]:
    """Processes killed at random moments, then the same command again until it is through."""
    vcl = [sys.executable, "-m", "vcl"]
    small = ["--hidden", "6", "--epochs", "40", "--num-tasks", "2", "--checkpoint-seconds", "0.1", "--quiet"]
    run, _ = finished(scratch)
    plan = scratch / "plan.toml"
    plan.write_text(
        'benchmark = "split-digits"\nmethod = "finetune"\nstream = {num_tasks = 2}\n'
        "settings = {hidden = [6]}\n[grid]\nepochs = [2, 30]\n"
    )
    commands = {
        f"run {name}": ["run", "split-digits", "--method", name, "--threads", "1", *small] for name in methods
    }
    commands |= {
        "seeds": ["run", "split-digits", "--seeds", "2", "--jobs", "2", *small],
        "compare": [
            "compare",
            "split-digits",
            "--methods",
            "finetune:epochs=30,si:epochs=30",
            *small[:2],
            *small[4:],
        ],
        "sweep": ["sweep", str(plan), "--checkpoint-seconds", "0.1", "--quiet"],
        "prune": ["prune", str(run)],
        "widen": ["widen", str(run), "--hidden", "9"],
        "extend": ["extend", str(run), "--num-tasks", "3", "--checkpoint-seconds", "0.1"],
        "report": ["report", str(run)],
    }
    where = {"prune": "--out", "widen": "--out", "extend": "--out", "report": "--out"}
    counts: Counter[str] = Counter()
    for number in range(count):
        name = list(commands)[number % len(commands)]
        results = []
        for attempt in ("whole", "killed"):
            place = scratch / f"{number}-{attempt}"
            place.mkdir()
            out = place / ("page.html" if name == "report" else "out")
            words = [*vcl, *commands[name], where.get(name, "--out"), str(out)]
            began = time.monotonic()
            if attempt == "whole":
                subprocess.run(words, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                seconds = time.monotonic() - began
            else:
                counts[name] += kill_until_through(words, seconds, rng, out)
            results.append(outcomes(place))
        if results[0] != results[1]:
            raise Wrong(f"{name}: another result after kills: {results}")
    return counts


def kill_until_through(words: list[str], seconds: float, rng: random.Random, out: Path) -> int:
    """Kill a command twice at random moments, and let it end the third time; return the number of kills."""
    killed = 0
    for attempt in range(3):
        process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        try:
            _, err = process.communicate(timeout=None if attempt == 2 else rng.uniform(0.2, 1.0) * seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            killed += 1
            continue
        if process.returncode and "vcl resume" in err:
            # A derived run was there already: it says how to continue.
            process = subprocess.Popen(
                [*words[:3], "resume", str(out)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
            )
            process.communicate()
        elif process.returncode and "vcl show" not in err:
            raise Wrong(f"{words} ended with code {process.returncode}: {err}")
        break
    return killed


def outcomes(place: Path) -> dict[str, Any]:
    """The results of all runs below a folder, by name; and what is there that should not be."""
    results = [json.loads(path.read_text()) for path in sorted(place.rglob("result.json"))]
    left = [path.name for path in place.rglob(".*") if not path.is_dir() or path.name.startswith(".sweep")]
    pages = len(list(place.rglob("page.html")))
    return {"runs": [{key: r[key] for key in SAME} for r in results], "left": left, "pages": pages}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("writes", "full", "flips", "damage", "arguments", "kills"))
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--stride", type=int, default=1, help="of the writes at which a run is killed")
    parser.add_argument("--methods", default="all")
    chosen = parser.parse_args()
    methods = list(METHODS) if chosen.methods == "all" else chosen.methods.split(",")
    runs.prepare_jax(1)
    rng = random.Random(chosen.seed)
    began = time.process_time()
    with tempfile.TemporaryDirectory(prefix="vcl-faults-") as folder:
        scratch = Path(folder)
        counts = {
            "writes": lambda: writes(methods, scratch, chosen.stride),
            "full": lambda: writes(methods, scratch, chosen.stride, ("full",)),
            "flips": lambda: flips(chosen.count, rng, scratch),
            "damage": lambda: damage(chosen.count, rng, scratch),
            "arguments": lambda: arguments(chosen.count, rng, scratch),
            "kills": lambda: kills(chosen.count, rng, scratch, methods),
        }[chosen.what]()
        for name, number in sorted(counts.items()):
            print(f"{number:6d}  {name}")
    print(f"{sum(counts.values())} in all, nothing wrong; {time.process_time() - began:.0f} s of CPU")


if __name__ == "__main__":
    main()
