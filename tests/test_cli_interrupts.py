"""Ctrl-C: acknowledged at once, what was learnt is saved, and there is never a traceback."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from vcl.cli import interrupts

VCL = [sys.executable, "-m", "vcl"]
PATIENCE = 120.0


@contextmanager
def started(command: list[str], folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A process in a group of its own, as a shell starts it."""
    process = subprocess.Popen(
        command, cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def press(process: subprocess.Popen[str]) -> None:
    """Ctrl-C in a terminal: SIGINT to the whole group."""
    os.killpg(process.pid, signal.SIGINT)


def wait_for(happened) -> None:
    end = time.monotonic() + PATIENCE
    while not happened():
        assert time.monotonic() < end
        time.sleep(0.05)


def ending(process: subprocess.Popen[str]) -> tuple[int, str]:
    """The exit code, as a shell gives it, and standard error."""
    _, err = process.communicate(timeout=PATIENCE)
    assert "Traceback" not in err
    assert "KeyboardInterrupt" not in err
    return process.returncode if process.returncode >= 0 else 128 - process.returncode, err


BUSY = """
import hashlib, sys
from vcl.cli import interrupts

with interrupts.listening() as now:
    with interrupts.saving(interrupts.to_stderr, lambda: " Continue with: this", lambda: {worth}) as asked:
        print("ready", flush=True)
        for _ in range({times}):
            # One long call that lets no signal handler of Python run before it is over.
            hashlib.pbkdf2_hmac("sha512", b"x", b"y", {rounds})
        print("asked", asked(), flush=True)
"""


def test_the_first_is_acknowledged_while_compiled_code_runs_and_the_work_goes_on_to_save(tmp_path):
    code = BUSY.format(worth=True, times=1, rounds=3_000_000)
    with started([sys.executable, "-c", code], tmp_path) as process:
        assert process.stdout.readline() == "ready\n"
        press(process)
        # While the call is still running: "asked" comes only after it.
        assert process.stderr.readline().startswith("vcl: Stopping…, saving what was learnt.")
        assert process.poll() is None
        out, _ = process.communicate(timeout=PATIENCE)
        assert out == "asked True\n"
        assert process.returncode == 0


def test_the_second_ends_the_process_at_once(tmp_path):
    code = BUSY.format(worth=True, times=1000, rounds=3_000_000)
    with started([sys.executable, "-c", code], tmp_path) as process:
        process.stdout.readline()
        press(process)
        assert "Stopping…" in process.stderr.readline()
        press(process)
        assert ending(process) == (130, "vcl: Stopped. Continue with: this\n")


def test_where_nothing_is_to_be_saved_the_main_thread_is_interrupted(monkeypatch):
    said: list[str] = []
    monkeypatch.setattr(interrupts, "to_stderr", said.append)
    with interrupts.listening() as now:
        now.say = said.append
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        assert now.raised
        assert not now.asked()
        now.end()
    assert said == ["Stopping…", "Stopped."]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_jax_is_never_interrupted_in_the_middle():
    """KeyboardInterrupt inside of it was seen to crash the process."""
    frame = sys._getframe()
    assert not interrupts.computes(frame)
    found = []
    exec("found.append(interrupts.computes(sys._getframe()))", {**globals(), "__name__": "jax._src", "found": found})
    assert found == [True]


def test_outside_of_the_main_thread_signals_are_left_alone():
    before = signal.getsignal(signal.SIGINT)

    def work() -> None:
        with interrupts.listening():
            assert signal.getsignal(signal.SIGINT) is before

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


LONG = ["run", "split-digits", "--epochs", "200000", "--hidden", "8", "--num-tasks", "2", "--out", "runs"]


def test_while_starting_one_line_is_the_answer(tmp_path):
    with started([*VCL, *LONG], tmp_path) as process:
        time.sleep(1.0)
        press(process)
        press(process)
        code, err = ending(process)
    assert code == 130
    assert err.rstrip().splitlines()[-1].startswith("vcl: Stopped.")


def saved(folder: Path) -> bool:
    """Whether epochs of each run that has begun are in the store, and told to those who show them."""
    files = list(folder.glob("runs/*/metrics.jsonl"))
    return bool(files) and all(file.read_text().count('"objective"') > 1 for file in files)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda n: n.name)
def test_a_run_that_is_stopped_saves_what_it_learnt_and_says_how_to_continue(tmp_path, number):
    with started([*VCL, *LONG, "--threads", "1", "--checkpoint-seconds", "1000"], tmp_path) as process:
        wait_for(lambda: saved(tmp_path))
        os.killpg(process.pid, number)
        code, err = ending(process)
    (folder,) = (tmp_path / "runs").iterdir()
    assert code == 130
    assert "Stopping…, saving what was learnt." in err
    assert err.endswith(f"vcl: Stopped; everything so far is saved. Continue with: vcl resume runs/{folder.name}\n")
    assert list(folder.glob("checkpoints/during-0001-train-*"))


def test_several_seeds_are_stopped_together(tmp_path):
    command = [*VCL, *LONG, "--seeds", "3", "--jobs", "2", "--checkpoint-seconds", "1000"]
    with started(command, tmp_path) as process:
        wait_for(lambda: saved(tmp_path) and len(list(tmp_path.glob("runs/[!.]*"))) == 2)
        press(process)
        code, err = ending(process)
    assert code == 130
    assert "Stopping…, saving what was learnt." in err
    assert err.endswith("vcl: Stopped; everything so far is saved. Continue with the same command.\n")
    folders = sorted((tmp_path / "runs").iterdir())
    assert len(folders) == 2, "nothing else is left"
    assert [json.loads((folder / "run.json").read_text())["seed"] for folder in folders] == [0, 1]
    assert all(list(folder.glob("checkpoints/during-*")) for folder in folders)


def test_a_hangup_is_ignored_where_it_was_when_the_process_started(monkeypatch):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with interrupts.listening():
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def in_session(leader: int) -> list[int]:
    """The processes of a session that are alive."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has just ended
        if int(fields[3]) == leader and fields[0] != "Z":
            found.append(int(folder.name))
    return found


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=lambda n: n.name)
def test_workers_end_when_their_parent_is_killed(tmp_path, number):
    command = [*VCL, *LONG, "--seeds", "3", "--jobs", "2", "--checkpoint-seconds", "1000"]
    with started(command, tmp_path) as process:
        wait_for(lambda: saved(tmp_path) and len(list(tmp_path.glob("runs/[!.]*"))) == 2)
        assert len(in_session(process.pid)) > 2
        os.kill(process.pid, number)
        process.wait(timeout=PATIENCE)
        wait_for(lambda: not in_session(process.pid))
    assert all(list(folder.glob("checkpoints/during-*")) for folder in (tmp_path / "runs").glob("[!.]*"))
