"""The command line: what scripts may rely on, and what every mistake is answered with."""

import json
import multiprocessing
import os
import pty
import resource
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from vcl import cli, runs
from vcl.benchmarks import STREAMS
from vcl.data import load
from vcl.errors import VclError
from vcl.methods import METHODS
from vcl.runs import sweep
from vcl.runs.folder import FORMAT, RunFolder
from vcl.runs.sealed import seal

TINY = ["--epochs", "2", "--hidden", "8", "--num-tasks", "2", "--threads", "1", "--test-samples", "3"]
RUN = ["run", "split-digits", *TINY]
NAME = "split-digits-vcl-*-seed0"


@dataclass(frozen=True)
class Answer:
    code: int
    out: str
    err: str


@pytest.fixture
def vcl(monkeypatch, capsys):
    """Call the command line in this process."""
    monkeypatch.setenv("NPROC", "1")  # commands set it: this restores it

    def call(*arguments: object) -> Answer:
        monkeypatch.setattr(sys, "argv", ["vcl", *map(str, arguments)])
        capsys.readouterr()
        code = 0
        try:
            cli.main()
        except SystemExit as ending:
            code = ending.code or 0
        return Answer(code, *capsys.readouterr())

    return call


def refused(answer: Answer, *words: str) -> None:
    """One paragraph on standard error, exit code 2, nothing on standard output, and no traceback."""
    assert answer.code == 2
    assert answer.out == ""
    assert "Traceback" not in answer.err
    message = answer.err[answer.err.index("vcl: ") :]
    assert "\n" not in message.strip()
    for word in words:
        assert word in message


@pytest.fixture(scope="session")
def finished(tmp_path_factory) -> Path:
    """The folder of a complete run, for reading only."""
    root = tmp_path_factory.mktemp("runs")
    learner = {"epochs": 2, "hidden": (8,), "test_samples": 3}
    config = runs.configure("split-digits", threads=1, stream=runs.StreamOptions(num_tasks=2), **learner)
    runs.run(config, root)
    return root / config.name


@pytest.fixture
def copied(finished, tmp_path) -> Path:
    """A complete run that a test may damage."""
    return Path(shutil.copytree(finished, tmp_path / "copied" / finished.name))


@pytest.fixture
def stopped(copied) -> Path:
    """A run that was interrupted after its first task."""
    (copied / "result.json").unlink()
    (copied / "checkpoints" / "after-0002.safetensors").unlink()
    return copied


@pytest.fixture(scope="session")
def images(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("images") / "images.npy"
    np.save(path, load("digits").test_images[:5])
    return path


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """No file can grow beyond `size` bytes: the kernel refuses the write, as it does on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def with_value_of(arguments: list[str], flag: str, value: str) -> list[str]:
    """The same command line with another value of a flag."""
    place = arguments.index(flag) + 1
    return [*arguments[:place], value, *arguments[place + 1 :]]


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# Running


def test_a_result_has_what_scripts_need(finished):
    result = RunFolder(finished).result
    assert {
        "benchmark", "method", "seed", "config", "accuracy_matrix", "average_accuracy", "forgetting",
        "backward_transfer", "forward_transfer", "steps", "train_seconds", "version", "processor",
    } <= result.keys()  # fmt: skip
    assert (result["benchmark"], result["method"], result["seed"]) == ("split-digits", "vcl", 0)
    assert result["config"]["learner"]["hidden"] == [8]
    (first, nothing), (old, new) = result["accuracy_matrix"]
    assert nothing is None
    assert all(0 <= a <= 1 for a in (first, old, new))
    assert result["average_accuracy"] == pytest.approx((old + new) / 2)
    assert result["forgetting"] == pytest.approx(first - old) == pytest.approx(-result["backward_transfer"])
    data = load("digits")
    batches = [-(-np.sum(data.train_labels // 2 == task) // 64) for task in range(2)]
    assert result["steps"] == 2 * sum(batches)
    assert [len(row) for row in result["scores"]] == [1, 2]
    assert result["scores"][1][0].keys() >= {"log_likelihood", "calibration_error", "aleatoric_entropy"}


def test_json_prints_the_result_and_only_that(vcl, finished, tmp_path):
    answer = vcl(*RUN, "--json", "--out", tmp_path)
    assert answer.code == 0
    result = json.loads(answer.out)
    (folder,) = tmp_path.glob(NAME)
    assert result == RunFolder(folder).result
    before = RunFolder(finished).result
    no_times = {"train_seconds": 0, "cpu_seconds": 0}
    assert {**result, **no_times} == {**before, **no_times}
    assert result["cpu_seconds"] > 0
    assert "task 2/2 learnt" in answer.err
    assert "\x1b" not in answer.err


def test_the_same_command_shows_a_complete_run_again(vcl, copied):
    before = contents(copied)
    answer = vcl(*RUN, "--out", copied.parent, "--json")
    assert json.loads(answer.out) == RunFolder(copied).result
    assert "complete" in answer.err
    assert contents(copied) == before


def test_quiet_leaves_standard_error_empty(vcl, copied):
    answer = vcl(*RUN, "--out", copied.parent, "--quiet")
    assert (answer.code, answer.err) == (0, "")
    assert "Average accuracy" in answer.out


def test_a_stopped_run_goes_on_by_resume_to_the_same_state(vcl, stopped, finished):
    answer = vcl("resume", stopped, "--json", "--quiet")
    assert (answer.code, answer.err) == (0, "")
    expected = RunFolder(finished).result
    assert json.loads(answer.out)["state_sha256"] == expected["state_sha256"]
    assert json.loads(answer.out)["accuracy_matrix"] == expected["accuracy_matrix"]


def test_fresh_runs_anew_beside_the_old_run(vcl, copied):
    before = contents(copied)
    answer = vcl(*RUN, "--out", copied.parent, "--fresh", "--json", "--quiet")
    again = copied.parent / "again-2" / copied.name
    assert json.loads(answer.out) == RunFolder(again).result
    assert contents(copied) == before


def test_a_full_disk_stops_with_a_word_and_the_run_goes_on_later(vcl, finished, tmp_path, monkeypatch):
    save_after = RunFolder.save_after
    with ExitStack() as full, monkeypatch.context() as patch:

        def save_and_fill_the_disk(*arguments, **options):
            save_after(*arguments, **options)
            full.enter_context(largest_file(5_000))

        patch.setattr(RunFolder, "save_after", save_and_fill_the_disk)
        answer = vcl(*RUN, "--out", tmp_path, "--quiet", "--checkpoint-seconds", "0")
    refused(answer, "Could not write", "during-0002", "File too large", "intact", "vcl resume")
    (folder,) = tmp_path.glob(NAME)
    assert RunFolder(folder).stages() == [1]
    later = vcl("resume", folder, "--json", "--quiet")
    expected = RunFolder(finished).result["state_sha256"]
    assert json.loads(later.out)["state_sha256"] == expected


def test_a_damaged_checkpoint_is_told_of_and_the_one_before_it_used(vcl, copied, finished):
    (copied / "result.json").unlink()
    (copied / "checkpoints" / "after-0002.safetensors").write_bytes(b"not a checkpoint")
    answer = vcl("resume", copied, "--json")
    assert answer.code == 0
    assert "after-0002.safetensors cannot be read" in answer.err
    assert "Continuing after stage 1 of 2" in answer.err
    expected = RunFolder(finished).result["state_sha256"]
    assert json.loads(answer.out)["state_sha256"] == expected


def test_a_second_process_on_one_run_is_refused(vcl, stopped):
    before = contents(stopped)
    with RunFolder(stopped).lock():
        refused(vcl("resume", stopped, "--quiet"), "Another process is at work")
        refused(vcl(*RUN, "--out", stopped.parent, "--quiet"), "Another process is at work")
    assert contents(stopped) == before


def test_several_seeds_give_mean_and_standard_deviation(vcl, copied):
    answer = vcl(*RUN[:-4], "--test-samples", "3", "--seeds", "2", "--json", "--quiet", "--out", copied.parent)
    assert (answer.code, answer.err) == (0, "")
    result = json.loads(answer.out)
    assert [run["seed"] for run in result["runs"]] == [0, 1]
    assert result["runs"][0] == RunFolder(copied).result
    accuracies = [run["average_accuracy"] for run in result["runs"]]
    assert result["mean"]["average_accuracy"] == pytest.approx(np.mean(accuracies))
    assert result["standard_deviation"]["average_accuracy"] == pytest.approx(np.std(accuracies, ddof=1))


def test_one_failing_seed_ends_the_others_with_its_own_message(vcl, tmp_path, finished):
    (tmp_path / finished.name).write_text("in the way")
    answer = vcl(*RUN[:-4], "--test-samples", "3", "--seeds", "5", "--jobs", "1", "--quiet", "--out", tmp_path)
    refused(answer, "Could not write", finished.name)


def test_a_process_that_was_killed_is_told_of(tmp_path):
    def kill(number, status):
        for process in multiprocessing.active_children():
            process.kill()

    config = runs.configure("split-digits", threads=1)
    with pytest.raises(VclError, match=r"worker process was killed.*the same command continues"):
        sweep.run_all([config], tmp_path, 1, watch=kill)


def test_extend_continues_a_run_with_further_tasks_as_if_they_had_been_there_from_the_start(vcl, copied, tmp_path):
    before = contents(copied)
    answer = vcl("extend", copied, "--num-tasks", "3", "--json", "--quiet")
    assert (answer.code, answer.err) == (0, "")
    assert contents(copied) == before
    longer = ["run", "split-digits", *with_value_of(TINY, "--num-tasks", "3"), "--json", "--quiet"]
    (folder,) = set(copied.parent.iterdir()) - {copied}
    # Its folder is the one that a run of three tasks has: the same command finds it.
    assert vcl(*longer, "--out", copied.parent).out == answer.out
    straight = json.loads(vcl(*longer, "--out", tmp_path / "straight").out)
    extended = json.loads(answer.out)
    assert extended["run"] == folder.name == straight["run"]
    assert extended["accuracy_matrix"] == straight["accuracy_matrix"]
    refused(vcl("extend", copied, "--num-tasks", "3"), f"{folder} exists already", f"vcl resume {folder}", "--out")
    refused(vcl("extend", copied, "--num-tasks", "2"), "2 tasks already", "must be larger")
    refused(vcl("extend", copied, "--num-tasks", "9", "--out", tmp_path / "new"), "at most 5")


def test_extend_writes_beside_the_run_though_it_is_the_current_folder(vcl, copied, monkeypatch):
    monkeypatch.chdir(copied)
    before = contents(copied)
    assert vcl("extend", ".", "--num-tasks", "3", "--quiet").code == 0
    assert contents(copied) == before
    assert len(list(copied.parent.iterdir())) == 2


def test_extend_needs_a_complete_run_and_resume_continues_what_it_began(vcl, stopped, tmp_path):
    refused(vcl("extend", stopped, "--num-tasks", "3"), "not complete", "vcl resume")
    vcl("resume", stopped, "--quiet")
    new = runs.extend(runs.StoredRun.open(stopped), 3, tmp_path / "new")
    assert new.folder.result is None
    answer = vcl("resume", tmp_path / "new", "--json")
    assert "Continuing after stage 2 of 3" in answer.err
    assert len(json.loads(answer.out)["accuracy_matrix"]) == 3


def test_convolutions_are_a_flag(vcl, tmp_path):
    small = ["--epochs", "1", "--hidden", "4", "--num-tasks", "1", "--threads", "1", "--test-samples", "1"]
    flags = [*small, "--network", "conv", "--channels", "2,3"]
    answer = vcl("run", "split-digits", *flags, "--json", "--quiet", "--out", tmp_path)
    assert answer.code == 0
    result = json.loads(answer.out)
    assert result["config"]["learner"]["network"] == "conv"
    assert result["config"]["learner"]["channels"] == [2, 3]
    # A mean and a variance for each: 3 × 3 convolutions, 2 × 2 × 3 features after pooling twice, one head of two.
    assert result["parameters"] == 2 * ((9 * 2 + 2) + (9 * 2 * 3 + 3) + (12 * 4 + 4) + (4 * 2 + 2))


def test_another_number_of_threads_is_explained_as_a_new_run(vcl, copied):
    two = with_value_of(RUN, "--threads", "2")
    answer = vcl(*two, "--out", copied.parent)
    assert answer.code == 0
    assert f"{copied} has the same configuration" in answer.err
    assert "(1, not 2)" in answer.err
    assert "rounded" in answer.err
    assert "same configuration" not in vcl(*two, "--out", copied.parent).err
    other = vcl(*two, "--seed", "7", "--out", copied.parent)
    assert other.code == 0
    assert "same configuration" not in other.err


# Reading


def test_show_prints_the_matrix_and_how_it_was_made(vcl, finished):
    answer = vcl("show", finished)
    result = RunFolder(finished).result
    assert answer.code == 0
    assert f"{100 * result['accuracy_matrix'][1][0]:.2f}" in answer.out
    assert "forgetting" in answer.out
    assert "epochs=2" in answer.out
    assert "Command: " in answer.out
    assert json.loads(vcl("show", finished, "--json").out) == result


def test_runs_lists_what_is_there_and_skips_what_it_cannot_read(vcl, stopped, finished):
    root = stopped.parent
    shutil.copytree(finished, root / "complete")
    newer = root / "newer"
    newer.mkdir()
    (newer / "run.json").write_text(json.dumps({"format": FORMAT + 1, "version": "9.9"}))
    answer = vcl("runs", "--out", root, "--json")
    assert answer.code == 0
    rows = {row["run"]: row for row in json.loads(answer.out)}
    assert rows.keys() == {"complete", stopped.name}
    result = RunFolder(finished).result
    assert rows["complete"]["average_accuracy"] == result["average_accuracy"]
    assert rows["complete"]["status"] == "complete"
    assert rows[stopped.name]["average_accuracy"] is None
    assert rows[stopped.name]["status"] == "stopped or running: task 2/2"
    assert "Skipped: " in answer.err
    assert "vcl 9.9" in answer.err
    listed = vcl("runs", root).out
    assert stopped.name in listed
    assert f" {100 * result['average_accuracy']:.2f} " in listed


def test_no_runs_is_no_mistake(vcl, tmp_path):
    answer = vcl("runs", "--out", tmp_path / "missing")
    assert (answer.code, answer.out) == (0, "")
    assert "No runs" in answer.err
    assert json.loads(vcl("runs", "--out", tmp_path, "--json").out) == []


def test_predictions_are_probabilities_with_their_uncertainty(vcl, finished, images, tmp_path):
    answer = vcl("predict", finished, "--input", images, "--task", "1", "--json")
    rows = json.loads(answer.out)
    assert len(rows) == 5
    for row in rows:
        assert sum(row["probabilities"]) == pytest.approx(1, abs=1e-5)
        assert row["class"] == int(np.argmax(row["probabilities"]))
        assert row["total_entropy"] == pytest.approx(row["aleatoric_entropy"] + row["epistemic_entropy"], abs=1e-6)
    # Every name is kept as it is given.
    written = vcl("predict", finished, "--input", images, "--task", "1", "--output", tmp_path / "out.dat")
    assert (written.code, written.out) == (0, "")
    with np.load(tmp_path / "out.dat") as arrays:
        np.testing.assert_allclose(arrays["probabilities"], [row["probabilities"] for row in rows], rtol=1e-6)


def test_pixels_floats_and_whole_images_are_predicted_alike(vcl, finished, images, tmp_path):
    pixels = np.load(images)
    answers = []
    for number, inputs in enumerate((pixels, pixels.reshape(-1, 8, 8), pixels / 255)):
        np.save(tmp_path / f"{number}.npy", inputs)
        answer = vcl("predict", finished, "--task", "2", "--json", "--input", tmp_path / f"{number}.npy")
        answers.append([row["probabilities"] for row in json.loads(answer.out)])
    np.testing.assert_allclose(answers[1], answers[0], rtol=1e-6)
    np.testing.assert_allclose(answers[2], answers[0], rtol=1e-4)


def test_methods_and_benchmarks_are_all_listed(vcl):
    for command, known in (("methods", METHODS), ("benchmarks", STREAMS)):
        answer = vcl(command)
        assert (answer.code, answer.err) == (0, "")
        assert all(name in answer.out for name in known)


def test_data_sets_are_listed_and_verified(vcl, tmp_path, monkeypatch):
    monkeypatch.setenv("VCL_CACHE_DIR", str(tmp_path))
    listed = vcl("data", "list")
    assert all(name in listed.out for name in ("mnist", "fashion-mnist", "cifar10", "digits"))
    assert vcl("data", "verify", "mnist").code == 0
    (tmp_path / "mnist").mkdir()
    (tmp_path / "mnist" / "t10k-labels-idx1-ubyte").write_bytes(b"altered")
    answer = vcl("data", "verify", "mnist")
    assert answer.code == 2
    assert "Altered:" in answer.err
    assert "t10k-labels-idx1-ubyte" in answer.err
    assert "Traceback" not in answer.err


# Starting


def run_in_process(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["data", "list"], []])
def test_what_needs_no_jax_does_not_import_it(arguments):
    code = (
        f"import sys; from vcl.cli import main; sys.argv = ['vcl', *{arguments}]\n"
        "try: main()\n"
        "except SystemExit as end: assert not end.code\n"
        "print(sorted({'jax', 'sklearn', 'matplotlib', 'optax'} & sys.modules.keys()))"
    )
    assert run_in_process(code).splitlines()[-1] == "[]"


def test_help_names_every_command_and_every_setting(vcl):
    answer = vcl("--help")
    assert answer.code == 0
    for command in ("run", "resume", "runs", "show", "predict", "methods", "benchmarks", "data", "extend"):
        assert command in answer.out
    settings = vcl("run", "--help").out
    for flag in ("--online", "--scenario", "--permute-first", "--validation", "--examples", "--coreset"):
        assert flag in settings
    assert "--network.layers" not in settings


def help_of(text: str, flag: str) -> str:
    """What the help says of one flag, on one line."""
    entries = "\n".join(text.splitlines()).split("\n│ --")
    (entry,) = [entry for entry in entries if f"--{entry}".startswith(f"{flag} ")]
    return " ".join(entry.replace("│", " ").partition("╰")[0].split()[1:])


def test_help_has_the_defaults_of_the_recipe_and_the_benchmark(vcl):
    fast = vcl("run", "--help").out
    assert help_of(fast, "--epochs") == "INT Passes over each task's data. [default: 40]"
    assert help_of(fast, "--hidden").endswith("[default: 200]")
    for method in ("vcl", "ewc"):
        shown = help_of(vcl("run", "--method", method, "--help").out, "--recipe")
        assert (
            shown
            == f"STR Named settings: {', '.join(METHODS[method].recipes)} (default: fast, or online with --online)."
        )
    assert help_of(fast, "--network").endswith("[choices: mlp, conv] [default: mlp]")
    paper = vcl("run", "permuted-mnist", "--recipe", "paper", "--help").out
    assert help_of(paper, "--epochs").endswith("[default: 800]")
    assert help_of(paper, "--hidden").endswith("[default: 100,100]")
    # Not in the recipe: the method's own.
    assert help_of(paper, "--init-log-var").endswith("[default: -6.0]")
    assert help_of(vcl("run", "--recipe=paper", "permuted-mnist", "-h").out, "--epochs").endswith("[default: 800]")


def test_help_leaves_the_letters_of_formulas_as_they_are(vcl):
    text = vcl("run", "--method", "ewc", "--help").out
    assert help_of(text, "--strength").startswith("FLOAT λ, the weight of the penalty")
    assert "Λ" not in text


def test_colours_are_for_terminals_only():
    command = [sys.executable, "-c", "from vcl.cli import main; main()", "benchmarks"]
    # Neither CI's settings nor the user's: only whether standard output is a terminal.
    plain = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "FORCE_COLOR", "CI", "TTY_COMPATIBLE")}
    environment = {**plain, "TERM": "xterm-256color"}
    piped = subprocess.run(command, env=environment, check=True, capture_output=True).stdout
    assert b"split-digits" in piped
    assert b"\x1b" not in piped

    ours, theirs = pty.openpty()
    with subprocess.Popen(command, env=environment, stdout=theirs) as process:
        os.close(theirs)
        shown = b""
        # Reading a terminal that its last user has left is an error.
        try:
            while part := os.read(ours, 4096):
                shown += part
        except OSError:
            pass
    os.close(ours)
    assert process.returncode == 0
    assert b"\x1b[1msplit-digits" in shown


@pytest.mark.parametrize("arguments", [["benchmarks"], ["runs", "--json"]])
def test_standard_output_on_a_full_disk_is_a_clear_error(arguments, tmp_path):
    command = [sys.executable, "-m", "vcl", *arguments]
    with Path("/dev/full").open("w") as full:
        answer = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, cwd=tmp_path, check=False)
    refused(Answer(answer.returncode, "", answer.stderr), "no space left on device")
    assert answer.stderr.startswith("vcl: ")


def test_a_real_process_ends_with_the_same_code_and_message(tmp_path):
    command = [sys.executable, "-m", "vcl", "run", "split-digit", "--json"]
    answer = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    refused(Answer(answer.returncode, answer.stdout, answer.stderr), "Did you mean 'split-digits'")
    assert not list(tmp_path.iterdir())


# Mistakes


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "split-digit"], ["'split-digit'", "Did you mean 'split-digits'"]),
        (["run", "split-digits", "--method", "vlc"], ["'vlc'", "Did you mean 'vcl'"]),
        (["run", "split-digits", "--method=vlc"], ["'vlc'", "Did you mean 'vcl'"]),
        (["run", "split-digits", "--recipe", "papr"], ["'papr'", "Did you mean 'paper'"]),
        (["run", "split-digits", "--epochs", "-1"], ["--epochs", "-1"]),
        (["run", "split-digits", "--epochs", "0"], ["--epochs", "0"]),
        (["run", "split-digits", "--epochs", "many"], ["--epochs", "many"]),
        (["run", "split-digits", "--further-epochs", "2.5"], ["--further-epochs", "2.5", "not a whole number"]),
        (["run", "split-digits", "--first-init-std", "nan"], ["--first-init-std", "nan", "not a finite number"]),
        (["run", "split-digits", "--learning-rate", "nan"], ["--learning-rate", "nan"]),
        (["run", "split-digits", "--batch-size", "0"], ["--batch-size"]),
        (["run", "split-digits", "--hidden", "abc"], ["--hidden", "100,100"]),
        (["run", "split-digits", "--hidden", "8,0"], ["--hidden"]),
        (["run", "split-digits", "--seed", "-1"], ["--seed", "-1"]),
        (["run", "split-digits", "--seeds", "0"], ["--seeds"]),
        (["run", "split-digits", "--jobs", "-2"], ["--jobs"]),
        (["run", "split-digits", "--num-tasks", "0"], ["--num-tasks"]),
        (["run", "split-digits", "--num-tasks", "6"], ["at most 5"]),
        (["run", "split-digits", "--online", "-5"], ["--online"]),
        (["run", "split-digits", "--examples", "-5"], ["--examples"]),
        (["run", "split-digits", "--validation", "1.5"], ["--validation"]),
        (["run", "split-digits", "--scenario", "both"], ["--scenario", "domain"]),
        (["run", "split-digits", "--permute-first"], ["permutes nothing"]),
        (["run", "permuted-digits", "--scenario", "class"], ["no class scenario"]),
        (["run", "split-digits", "--coreset", "5000"], ["5000", "--coreset"]),
        (["run", "split-digits", "--coreset", "-1"], ["--coreset"]),
        (["run", "split-digits", "--no-such-flag", "3"], ["--no-such-flag"]),
        (["run", "split-digits", "extra"], ["extra"]),
        (["run"], ["BENCHMARK"]),
        (["run", "split-digits", "--epoch", "3"], ["Did you mean --epochs? See `vcl run --help`."]),
        (["run", "split-digits", "--network", "cnn"], ["--network", "mlp", "conv"]),
        (["run", "split-digits", "--method", "clnp", "--network", "conv"], ["dense layers", "--network mlp"]),
        (["run", "split-digits", "--channels", "8,x"], ["--channels"]),
        (["fly"], ["fly", "See `vcl --help`"]),
        (["methods", "--no-such-flag"], ["--no-such-flag"]),
        (["run", "split-digits", "--method", "feedback-replay", "--temperature", "inf"], ["--temperature", "inf"]),
        (
            ["compare", "split-digits", "--methods", "clnp,separate", "--scenario", "class"],
            ["None of these methods", "clnp: ", "separate: "],
        ),
        (["data", "verify", "mnits"], ["Did you mean 'mnist'"]),
        (["data", "fetch", "mnits"], ["Did you mean 'mnist'"]),
    ],
    ids=" ".join,
)
def test_a_mistake_is_answered_with_one_paragraph(vcl, tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    refused(vcl(*arguments), *words)
    assert not list(tmp_path.rglob("result.json"))


@pytest.mark.parametrize("command", ["resume", "show", "predict"])
@pytest.mark.parametrize(
    ("record", "words"),
    [
        (None, ["is not a run folder", "run.json"]),
        ({"format": FORMAT + 1, "version": "9.9"}, ["vcl 9.9", f"format {FORMAT + 1}", "Install"]),
        ({}, ["is not a run folder"]),
        ([], ["does not hold a JSON object"]),
    ],
)
def test_a_folder_that_is_no_run_of_ours_is_refused(vcl, tmp_path, images, command, record, words):
    if record is not None:
        (tmp_path / "run.json").write_text(json.dumps(record))
    before = contents(tmp_path)
    refused(vcl(command, tmp_path, *(["--input", images] if command == "predict" else [])), *words)
    assert contents(tmp_path) == before


def test_a_run_from_a_newer_version_is_not_run_over(vcl, copied):
    record = RunFolder(copied).record
    (copied / "run.json").write_bytes(seal({**record, "format": FORMAT + 1, "version": "9.9"}))
    before = contents(copied)
    refused(vcl(*RUN, "--out", copied.parent), "vcl 9.9", "Install")
    assert contents(copied) == before


def test_a_run_that_is_not_complete_cannot_be_shown(vcl, stopped):
    refused(vcl("show", stopped), "is not complete", "vcl resume")


def test_a_run_folder_under_another_name_goes_on(vcl, stopped):
    moved = stopped.rename(stopped.parent / "renamed")
    assert vcl("resume", moved, "--quiet").code == 0
    assert RunFolder.open(moved).result["run"] == "renamed"
    assert list(moved.parent.iterdir()) == [moved]


@pytest.mark.parametrize("place", ["file", "file/below"])
def test_a_folder_that_cannot_be_written_is_refused(vcl, tmp_path, place):
    (tmp_path / "file").write_text("in the way")
    refused(vcl(*RUN, "--out", tmp_path / place), "Could not write", "--out")
    assert (tmp_path / "file").read_text() == "in the way"


def test_an_altered_data_file_is_refused(vcl, tmp_path, monkeypatch):
    monkeypatch.setenv("VCL_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "mine").mkdir()
    for file in ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"):
        (tmp_path / "mine" / file).write_bytes(b"altered")
    answer = vcl("run", "split-mnist", "--data-dir", tmp_path / "mine", "--out", tmp_path / "runs", "--quiet")
    refused(answer, "train-images-idx3-ubyte", "altered", "expected", "Replace or remove it")
    assert not (tmp_path / "runs").exists()


def with_value(value: float) -> np.ndarray:
    inputs = np.zeros((3, 64))
    inputs[1, 5] = value
    return inputs


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        (with_value(np.nan), ["NaN", "number 1"]),
        (with_value(np.inf), ["infinity"]),
        (with_value(2.0), ["between 0 and 2", "scaled to [0, 1]"]),
        (np.zeros((3, 63)), ["(3, 63)", "(examples, 64)", "(examples, 8, 8)"]),
        (np.zeros(64), ["(64,)"]),
        (np.zeros(()), ["()"]),
        (np.zeros((0, 64), np.uint8), ["no examples"]),
        (np.zeros((3, 64), np.int64), ["int64", "uint8"]),
        (np.array([["a"] * 64]), ["must be uint8"]),
    ],
)
def test_inputs_that_a_run_cannot_take_are_refused(vcl, finished, tmp_path, inputs, words):
    np.save(tmp_path / "inputs.npy", inputs)
    refused(vcl("predict", finished, "--input", tmp_path / "inputs.npy", "--task", "1"), *words)


@pytest.mark.parametrize(
    "contents", [b"", b"hello", b"PK\x03\x04 cut short", b"\x93NUMPY\x01\x00v\x00{'descr'", None]
)
def test_a_file_that_is_no_array_is_refused(vcl, finished, tmp_path, contents):
    path = tmp_path / "inputs.npy"
    if contents is not None:
        path.write_bytes(contents)
    refused(vcl("predict", finished, "--input", path, "--task", "1"), "inputs.npy", "numpy.save")


def test_an_array_that_would_run_code_is_refused(vcl, finished, tmp_path):
    np.save(tmp_path / "inputs.npy", np.array([threading.Event], dtype=object), allow_pickle=True)
    refused(vcl("predict", finished, "--input", tmp_path / "inputs.npy", "--task", "1"), "numpy.save")


def test_several_arrays_in_one_file_are_refused(vcl, finished, tmp_path):
    np.savez(tmp_path / "inputs.npz", a=np.zeros(3))
    refused(vcl("predict", finished, "--input", tmp_path / "inputs.npz", "--task", "1"), "several arrays")


@pytest.mark.parametrize(
    ("task", "words"), [([], ["--task 1 … 2"]), (["--task", "0"], ["1 … 2"]), (["--task", "3"], ["1 … 2"])]
)
def test_predictions_need_one_of_the_tasks(vcl, finished, images, task, words):
    refused(vcl("predict", finished, "--input", images, *task), *words)


def test_predictions_need_a_task_where_the_method_does_though_all_share_a_head(vcl, images, tmp_path):
    small = {"epochs": 1, "hidden": (4,), "threads": 1, "stream": runs.StreamOptions(num_tasks=2)}
    config = runs.configure("permuted-digits", "separate", **small)
    runs.run(config, tmp_path)
    refused(vcl("predict", tmp_path / config.name, "--input", images), "--task 1 … 2")
    assert vcl("predict", tmp_path / config.name, "--input", images, "--task", "2").code == 0


def test_a_model_that_is_not_there(vcl, tmp_path):
    missing = tmp_path / "churn.vcl"
    refused(vcl("predict", missing, "new.csv"), "no model or run", "vcl learn")
    refused(vcl("export", missing, "--format", "card"), "There is no file", "vcl learn")


def test_predictions_that_cannot_be_written_are_refused(vcl, finished, images, tmp_path):
    place = tmp_path / "missing" / "out.npz"
    answer = vcl("predict", finished, "--input", images, "--task", "1", "--output", place)
    refused(answer, "Could not write", "missing")


def test_predictions_from_something_else_than_a_checkpoint_are_refused(vcl, copied, images):
    (copied / "checkpoints" / "after-0002.safetensors").write_bytes(b"\x80\x04\x95 a pickle")
    answer = vcl("predict", copied, "--input", images, "--task", "1")
    refused(answer, "after-0002.safetensors cannot be read", "vcl resume")


def test_predictions_before_anything_is_learnt_are_refused(vcl, stopped, images):
    (stopped / "checkpoints" / "after-0001.safetensors").unlink()
    refused(vcl("predict", stopped, "--input", images, "--task", "1"), "not learnt a task yet")


def test_several_runs_are_shown_together_and_reported_in_one_page(vcl, finished, tmp_path):
    other = vcl("run", "split-digits", *TINY, "--seed", "5", "--out", tmp_path, "--json")
    second = next(tmp_path.glob("*seed5"))
    shown = json.loads(vcl("show", finished, second, "--json", "--figure", tmp_path / "both.svg").out)
    assert [r["seed"] for r in shown["runs"]] == [0, 5]
    assert (tmp_path / "both.svg").read_text().lstrip().startswith("<?xml")
    page = tmp_path / "page.html"
    assert vcl("report", finished, second, "--out", page).code == 0
    text = page.read_text()
    assert f"{100 * json.loads(other.out)['average_accuracy']:.2f} %" in text
    assert "2 runs" in text
    assert "http://" not in text.replace("http://www.w3.org", "")


@pytest.fixture(scope="session")
def others(tmp_path_factory) -> dict[str, Path]:
    """Runs that differ from the finished one in an option each."""
    root = tmp_path_factory.mktemp("others")
    small = {"epochs": 1, "hidden": (8,), "test_samples": 1}
    changes = {"epochs": ({**small, "epochs": 2}, 1), "tasks": (small, 2), "plain": (small, 1)}
    configs = {
        name: runs.configure("split-digits", threads=1, stream=runs.StreamOptions(num_tasks=tasks), **settings)
        for name, (settings, tasks) in changes.items()
    }
    for config in configs.values():
        runs.run(config, root)
    return {name: root / config.name for name, config in configs.items()}


@pytest.mark.parametrize(("other", "difference"), [("epochs", "epochs: 1, 2."), ("tasks", "num_tasks: 1, 2.")])
def test_runs_of_different_settings_are_not_averaged(vcl, others, other, difference):
    refused(vcl("show", others["plain"], others[other]), f"They differ in {difference}", "vcl report")


def test_a_seed_counts_once(vcl, finished):
    refused(vcl("show", finished, finished), "Two of these runs have seed 0")


def test_units_of_several_runs_come_under_their_names(vcl, others):
    paths = others["plain"], others["epochs"]
    answer = vcl("units", *paths)
    assert answer.code == 0
    first, second = (answer.out.index(path.name) for path in paths)
    assert first < answer.out.index("active of 8") < second
    documents = json.loads(vcl("units", *paths, "--json").out)
    assert [document["run"] for document in documents] == [path.name for path in paths]
    single = json.loads(vcl("units", paths[1], "--json").out)
    assert single == documents[1]


def test_a_page_escapes_what_it_is_told(vcl, finished, tmp_path):
    folder = tmp_path / finished.name
    shutil.copytree(finished, folder)
    record = RunFolder(folder).record
    (folder / "run.json").write_bytes(seal({**record, "command": "vcl run <script>alert(1)</script>"}))
    vcl("report", folder, "--out", tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    assert "<script>" not in text
    assert "&lt;script&gt;" in text


def test_a_figure_must_be_a_picture(vcl, finished, tmp_path):
    refused(vcl("show", finished, "--figure", tmp_path / "figure.txt"), ".png")


@pytest.mark.parametrize("flag", ["--last-hidden", "--schedule", "--epochs", "--prior-std", "--hidden"])
def test_none_is_no_value_of_a_setting(vcl, flag):
    """And not a way of leaving it out, which would run something else than what was meant."""
    refused(vcl("run", "split-digits", flag, "none"), f"for {flag}")
