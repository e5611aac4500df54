"""Faults, injected and counted: every one must be told or repaired, and none may change an answer in silence.

    python bench/faults.py writes                      killed inside every write of a run, at four points of each
    python bench/faults.py full                        the disk is full at every write
    python bench/faults.py flips --count 1000          bit flips in every file, read by the commands
    python bench/faults.py damage --count 300          truncation, lost lines, swapped files, FIFOs, …
    python bench/faults.py arguments --count 1000      command lines with odd values
    python bench/faults.py calls --count 1000          Python calls with odd values
    python bench/faults.py clocks --count 20           files of any age, a clock that jumps, a resumed run
    python bench/faults.py kills --count 20            SIGKILL of real processes at random moments, over all commands

Each prints how often what happened, and ends with code 1 if anything went wrong.
"""

import argparse
import contextlib
import errno
import io
import os
import random
import shutil
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from kills import SAME, Wrong, kills

from vcl import model, recording, runs
from vcl.cli.app import start
from vcl.errors import VclError
from vcl.files import write_atomically
from vcl.methods import METHODS
from vcl.runs import folder as folders

TINY = {"hidden": (6,), "epochs": 3, "batch_size": 64}
TASKS = 2
LONGEST = 60.0
"""Seconds that anything may take; a machine with much other work needs more (--patience)."""


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

    def written(*words: Any) -> Callable[[], Any]:
        def call() -> Any:
            code, _, err = command(*words)
            if "Traceback" in err or code not in (0, 2):
                raise Wrong(f"{words}: {err}")
            if code or "reported without its units" in err:
                raise VclError(err)
            return Path(words[-1]).read_text()

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
        "units": shown("units", run, "--json"),
        "report": written("report", run, "--out", run.parent.parent / "page.html"),
    }


HEAVY = {"units", "report"}
"""Ways to read that compute for a while, and are chosen less often."""


def chosen_way(ways: Mapping[str, Any], expected: dict[str, Any], rng: random.Random) -> str:
    """A way to read what is still whole; what it answers is noted the first time."""
    name = rng.choices(list(ways), [1 if name in HEAVY else 20 for name in ways])[0]
    if name not in expected:
        expected[name] = ways[name]()
    return name


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
    if time.monotonic() - began > LONGEST:
        raise Wrong(f"{what}, {name}: took more than a minute")


def files_of(run: Path) -> list[Path]:
    return [path for path in sorted(run.rglob("*")) if path.is_file() and path.name != "lock"]


def model_readings(model: Path, table: Path, scratch: Path) -> dict[str, Callable[[], Any]]:
    """Ways to read the file of a model."""
    from vcl import Model
    from vcl.checkpoints import tree_digest

    def answer(*words: object, written: Path | None = None) -> Callable[[], Any]:
        def call() -> Any:
            code, out, err = command(*words)
            if "Traceback" in err or code not in (0, 2):
                raise Wrong(f"{words}: {err}")
            if code:
                raise VclError(err)
            return out + (written.read_text() if written else "")

        return call

    page, card, predicted = (scratch / name for name in ("page.html", "card.md", "predicted.csv"))
    return {
        "load": lambda: (
            tree_digest((m := Model.load(model)).snapshot.state),
            m.tasks_,
            m.classes_,
            m.log_,
            m.notes_,
        ),
        "show model": answer("show", model, "--json"),
        "predict with model": answer("predict", model, table, "--output", predicted, written=predicted),
        "report of model": answer("report", model, "--out", page, written=page),
        "export": answer("export", model, "--format", "card", "--output", card, written=card),
    }


def flips(count: int, rng: random.Random, scratch: Path) -> Counter[str]:
    """A bit flipped in one file, then one way to read the run, or the model."""
    run, _ = finished(scratch)
    model, table = own_model(scratch)
    ways = readings(run, scratch / "images.npy")
    of_model = model_readings(model, table, scratch)
    expected: dict[str, Any] = {}
    counts: Counter[str] = Counter()
    paths = [*files_of(run), model, model]
    for number in range(count):
        path = paths[number % len(paths)]
        known = of_model if path == model else ways
        name = chosen_way(known, expected, rng)
        good = path.read_bytes()
        # Headers and JSON are short beside arrays: half of the flips are near the start.
        place = rng.randrange(min(len(good), 2000) if rng.random() < 0.5 else len(good))
        path.write_bytes(good[:place] + bytes([good[place] ^ (1 << rng.randrange(8))]) + good[place + 1 :])
        try:
            judge(name, known[name], expected[name], counts, f"{path.name}, byte {place}")
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
    expected: dict[str, Any] = {}
    # A run that was not complete, or has lost a trace as a whole, is read as what it is.
    fewer = {"result.json": ("states", "task ends", "record", "trace", "predict", "events")}
    counts: Counter[str] = Counter()
    whole = scratch / "whole"
    shutil.copytree(run, whole)
    for number in range(count):
        path = files_of(whole)[number % len(files_of(whole))]
        path = run / path.relative_to(whole)
        kinds = structural(run, other, rng)
        kind, name = rng.choice(list(kinds)), chosen_way(ways, expected, rng)
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


RUN = ("run", "split-digits", "--epochs", "1", "--hidden", "4", "--num-tasks", "1", "--threads", "1", "--quiet")
LEARN = ("--label", "label", "--method", "finetune", "--epochs", "1", "--hidden", "4", "--quiet")


def own_model(scratch: Path) -> tuple[Path, Path]:
    """A model of one's own data, and the file that it was taught with."""
    rows = np.random.default_rng(0).normal(size=(60, 2))
    table, model = scratch / "table.csv", scratch / "model.vcl"
    table.write_text("a,b,label\n" + "".join(f"{a:.4f},{b:.4f},{'yes' if a > 0 else 'no'}\n" for a, b in rows))
    code, _, err = command("learn", model, table, *LEARN, "--test", "0.6")
    if code:
        raise Wrong(f"vcl learn failed: {err}")
    return model, table


def command_lines(run: Path, scratch: Path) -> list[tuple[list[Any], tuple[str, ...]]]:
    """Commands that are right, each with flags that an odd value may be put behind; more of what is more used."""
    model, table = own_model(scratch)
    of_models = (
        "--label",
        "--ignore",
        "--task",
        "--test",
        "--method",
        "--hidden",
        "--epochs",
        "--seed",
        "--threads",
    )
    return [
        *[([*RUN], FLAGS)] * 12,
        *[(["learn", "new.vcl", table, *LEARN], of_models)] * 3,
        *[(["predict", model, table], ("--task", "--reject", "--coverage", "--output", "--input"))] * 3,
        (["learn", model, table, "--quiet"], of_models),
        (["export", model, "--format", "card"], ("--format", "--output", "--task")),
        (["report", model], ("--out", "--data-dir")),
        (["show", model], ("--figure",)),
        (["show", run], (*FLAGS, "--figure")),
        (["runs"], FLAGS),
        (["predict", run, "--input", scratch / "images.npy"], ("--task", "--input", "--output", "--reject")),
        (["units", run], ("--tolerance", "--data-dir")),
        (["widen", run], ("--hidden", "--out", "--after")),
        (["prune", run, "--tolerance", "-1"], ("--after", "--tolerance", "--out")),
        (["extend", run], ("--num-tasks", "--out", "--checkpoint-seconds")),
        (["compare", "split-digits", "--methods", "nothing"], ("--methods", "--seeds", "--jobs", "--validation")),
        (["sweep", table], ("--jobs", "--shard", "--out")),
        (["data", "verify"], ("--data-dir",)),
        (["resume", run], ("--checkpoint-seconds", "--data-dir")),
    ]


def arguments(count: int, rng: random.Random, scratch: Path) -> Counter[str]:
    """Command lines with odd values; those that are valid are carried out."""
    run, _ = finished(scratch)
    counts: Counter[str] = Counter()
    wrong: list[str] = []
    os.chdir(scratch)
    lines = command_lines(run, scratch)
    for _ in range(count):
        right, flags = rng.choice(lines)
        odd = [word for _ in range(rng.choice((1, 1, 2))) for word in (rng.choice(flags), rng.choice(VALUES))]
        if rng.random() < 0.1:
            odd = [rng.choice(VALUES)]
        words = [*right, *odd]
        began, problem = time.monotonic(), ""
        try:
            code, _, err = command(*words)
        except Exception as error:
            code, problem = 1, f"{type(error).__name__}: {error}"
        else:
            if code not in (0, 2) or "Traceback" in err or time.monotonic() - began > LONGEST:
                problem = f"code {code} after {time.monotonic() - began:.0f} s: {err}"
            elif code == 2 and err[err.index("vcl: ") :].strip().count("\n") > 0:
                problem = f"more than one paragraph: {err}"
        if problem:
            wrong.append(f"{words}: {problem}")
            print(wrong[-1], flush=True)
        counts[f"{words[0]}: {'refused' if code else 'accepted'}"] += 1
    if wrong:
        raise Wrong(f"{len(wrong)} of {count} command lines, the first: {wrong[0]}")
    return counts


# Python calls

ODD = (
    0,
    -1,
    1.5,
    float("nan"),
    float("inf"),
    10**30,
    "abc",
    "",
    None,
    True,
    [],
    (),
    {},
    b"x",
    "x" * 300,
    1e-300,
    2,
    0.5,
)
CALLS = ("configure", "stream", "run", "Model", "learn", "predict", "classifier")


def odd_arrays(rng: random.Random) -> Any:
    """What somebody may hand in as examples."""
    good = np.random.default_rng(0).normal(size=(20, 3))
    choices = [good * 1e30, good * 1e39, good[:0], good[:, :0], good[0], good.astype(str), good.astype(complex)]
    choices += [
        good.astype(object),
        np.where(good > 1, np.nan, good),
        good.astype("M8[s]"),
        [[1], [1, 2]],
        None,
        "x",
        3,
    ]
    choices += [good.tolist(), good[:, :2], good.astype(np.uint8), good > 0, good.astype(np.float16)]
    return rng.choice(choices)


def odd_labels(rng: random.Random) -> Any:
    """What somebody may hand in as labels."""
    choices: list[Any] = [
        [0, 1] * 10,
        ["a", "b"] * 10,
        [0] * 20,
        [0, 1],
        [None] * 20,
        [float("nan")] * 20,
        [[0]] * 20,
    ]
    choices += [
        np.zeros((20, 1)),
        None,
        7,
        "labels",
        list(range(20)),
        [(1, 2), (2, 1)] * 10,
        [{}] * 20,
        [0, "a"] * 10,
    ]
    return rng.choice(choices)


def call(kind: str, rng: random.Random, scratch: Path) -> Any:  # noqa: PLR0911
    """One call with an odd value somewhere; whatever is valid is carried out."""
    import vcl
    from vcl.sklearn import VCLClassifier

    small: dict[str, Any] = {"hidden": (4,), "epochs": 1}
    names = ["hidden", "epochs", "batch_size", "learning_rate", "schedule", "network", "prior_std", "test_samples"]
    names += ["train_samples", "coreset", "init_std", "noise", "channels"]
    odd = {rng.choice(names): rng.choice(ODD)}
    x, y = np.random.default_rng(0).normal(size=(20, 3)), [0, 1] * 10
    if kind == "configure":
        place = rng.choice(["seed", "threads", "recipe", "setting"])
        odd = odd if place == "setting" else {place: rng.choice(ODD)}
        return vcl.configure(rng.choice(["split-digits", "split-digits", "x", 3, None]), **{**small, **odd})
    if kind == "stream":
        name = rng.choice(["num_tasks", "scenario", "online", "validation", "permute_first", "examples"])
        return vcl.build("permuted-digits", vcl.StreamOptions(**{name: rng.choice(ODD)}), rng.choice([0, 0, *ODD]))
    if kind == "run":
        options = vcl.StreamOptions(num_tasks=1)
        chosen = vcl.configure("split-digits", threads=1, stream=options, **{**small, "test_samples": 1, **odd})
        return vcl.run(chosen, str(scratch / "calls"))
    if kind == "Model":
        return vcl.Model(
            rng.choice(["vcl", "ewc", "nothing", 3]),
            **{"epochs": 1, **rng.choice([{"seed": rng.choice(ODD)}, odd])},
        )
    model = vcl.Model("finetune", **small)
    if kind == "learn":
        task = rng.choice([None, "one", *ODD])
        return model.learn(odd_arrays(rng), rng.choice([y, odd_labels(rng)]), task)
    if kind == "predict":
        task = rng.choice([None, "default", *ODD])
        return model.learn(x, y).predict_proba(odd_arrays(rng), task)
    odd = {rng.choice(VCLClassifier._get_param_names()): rng.choice(ODD)}
    estimator = VCLClassifier(**{"hidden": (4,), "epochs": 1, **rng.choice([{}, odd])})
    return estimator.fit(rng.choice([x, odd_arrays(rng)]), rng.choice([y, odd_labels(rng)])).predict(x)


def calls(count: int, rng: random.Random, scratch: Path) -> Counter[str]:
    """Calls from Python with odd values: each is refused by a VclError of one paragraph, or carried out."""
    counts: Counter[str] = Counter()
    wrong: list[str] = []
    for number in range(count):
        kind, state = rng.choice(CALLS), rng.getstate()
        began, problem = time.monotonic(), ""
        try:
            call(kind, rng, scratch)
            counts[f"{kind}: accepted"] += 1
        except VclError as error:
            problem = "more than one paragraph" if "\n\n" in str(error).strip() else ""
            counts[f"{kind}: refused"] += 1
        except Exception as error:
            problem = "" if by_sklearn(error) else f"{type(error).__name__}: {error}"
            counts[f"{kind}: refused"] += 1
        if time.monotonic() - began > LONGEST:
            problem += f" took {time.monotonic() - began:.0f} s"
        if problem:
            wrong.append(f"{kind}, call {number}, {what_was(kind, state)}: {problem}")
            print(wrong[-1], flush=True)
    if wrong:
        raise Wrong(f"{len(wrong)} of {count} calls")
    return counts


def by_sklearn(error: Exception) -> bool:
    """Whether scikit-learn's own checks refused what its estimators were handed, by the errors that it promises."""
    last = traceback.extract_tb(error.__traceback__)[-1].filename
    return isinstance(error, ValueError | TypeError) and "sklearn/utils" in last


def what_was(kind: str, state: Any) -> str:
    """What a call was handed, for the message."""
    drawn: list[str] = []

    class Told(random.Random):
        def choice(self, seq: Any) -> Any:
            found = super().choice(seq)
            drawn.append(repr(found)[:60])
            return found

    told = Told()
    told.setstate(state)
    with contextlib.suppress(Exception):
        call(kind, told, Path(tempfile.mkdtemp()))
    return ", ".join(drawn)


# Clocks


def clocks(count: int, rng: random.Random, scratch: Path) -> Counter[str]:
    """A run killed inside a write, then files of any age and a clock that jumps by years while it is resumed."""
    counts: Counter[str] = Counter()
    chosen = config("finetune")
    with Disk().mounted() as disk:
        expected = runs.run(chosen, scratch / "whole", seconds_between_checkpoints=0.0)
    for number in range(count):
        root = scratch / f"clock-{number}"
        with Disk(rng.randrange(disk.count), "after").mounted(), contextlib.suppress(Killed):
            runs.run(chosen, root, seconds_between_checkpoints=0.0)
        for path in root.rglob("*"):
            os.utime(path, (rng.uniform(0, 4e9),) * 2)
        real = time.time
        time.time = lambda: rng.uniform(0, 4e9)
        try:
            found = runs.run(chosen, root, seconds_between_checkpoints=0.0)
        finally:
            time.time = real
        if not same(found, expected):
            raise Wrong(f"after a jump of the clock, run {number}: another result")
        counts["jumps of the clock"] += 1
        shutil.rmtree(root)
    return counts


WHAT = ("writes", "full", "flips", "damage", "arguments", "calls", "clocks", "kills")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=WHAT)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--stride", type=int, default=1, help="of the writes at which a run is killed")
    parser.add_argument("--methods", default="all")
    parser.add_argument("--patience", type=float, default=LONGEST, help="seconds that one command or call may take")
    chosen = parser.parse_args()
    globals()["LONGEST"] = chosen.patience
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
            "calls": lambda: calls(chosen.count, rng, scratch),
            "clocks": lambda: clocks(chosen.count, rng, scratch),
            "kills": lambda: kills(chosen.count, rng, scratch, methods),
        }[chosen.what]()
        for name, number in sorted(counts.items()):
            print(f"{number:6d}  {name}")
    print(f"{sum(counts.values())} in all, nothing wrong; {time.process_time() - began:.0f} s of CPU")


if __name__ == "__main__":
    main()
