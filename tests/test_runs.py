"""Runs: what they find, and that no interruption changes a bit of it."""

import random
from pathlib import Path

import jax
import kill_resume
import numpy as np
import pytest
from conftest import make_stream

from vcl import runs
from vcl.benchmarks import StreamOptions
from vcl.benchmarks.streams import online
from vcl.errors import VclError
from vcl.methods import make
from vcl.methods.vcl import VCL
from vcl.runs import execute
from vcl.runs.events import Silent
from vcl.runs.fold import Interrupted, learn
from vcl.runs.folder import RunFolder
from vcl.runs.legacy import translated
from vcl.runs.status import RunStatus
from vcl.runs.sweep import run_all

SMALL = {"hidden": (8,), "epochs": 6, "batch_size": 16, "test_samples": 3}
SAME = ("accuracy_matrix", "scores", "untrained_accuracy", "accuracy_before_learning", "steps", "state_sha256")


class Listener(Silent):
    def __init__(self):
        self.words = []

    def say(self, message):
        self.words.append(message)

    warn = say


class StopAt:
    """Asks to stop at the n-th opportunity."""

    def __init__(self, n: int) -> None:
        self.left = n

    def __call__(self) -> bool:
        self.left -= 1
        return self.left < 0


def same(one, other) -> None:
    for key in SAME:
        assert one[key] == other[key], key


def objectives(folder: RunFolder) -> dict[tuple[int, str], list[float]]:
    curves: dict[tuple[int, str], list[float]] = {}
    for event in folder.events():
        if event["event"] == "objective":
            curve = curves.setdefault((event["stage"], event["phase"]), [])
            assert event["first"] == len(curve), "epochs are missing or told twice"
            curve += event["objectives"]
    return curves


def folder(path: Path) -> RunFolder:
    return RunFolder.create(path, {})


STREAMS = {
    "heads": make_stream,
    "shared head": lambda: make_stream(shared_head=True),
    "online": lambda: online(make_stream(), 25, 0),
}


@pytest.mark.parametrize(
    ("stream", "settings"),
    [
        ("heads", {}),
        ("shared head", {}),
        ("shared head", {"coreset": 5}),
        ("heads", {"start": "previous", "estimator": "weights"}),
        ("online", {"coreset": 5}),
    ],
)
def test_a_run_interrupted_everywhere_ends_like_one_that_was_not(tmp_path, stream, settings):
    learner, make = VCL(**SMALL, **settings), STREAMS[stream]
    whole = learn(learner, make(), 3, folder=folder(tmp_path / "whole"))
    broken, interruptions = folder(tmp_path / "broken"), 0
    while True:
        try:
            # A read-out starts afresh after an interruption, so each attempt is given a little longer.
            stop = StopAt(2 + interruptions)
            result = learn(learner, make(), 3, folder=broken, stop=stop, seconds_between_checkpoints=0.0)
            break
        except Interrupted:
            interruptions += 1
    assert interruptions >= 2
    same(whole, result)
    assert objectives(broken) == objectives(RunFolder(tmp_path / "whole"))


def test_a_store_does_not_change_the_result(tmp_path, stream):
    learner = VCL(**SMALL)
    same(learn(learner, stream, 1), learn(learner, stream, 1, folder=folder(tmp_path)))


def test_another_seed_gives_another_result(stream):
    learner = VCL(**SMALL)
    assert learn(learner, stream, 1)["state_sha256"] != learn(learner, stream, 2)["state_sha256"]


@pytest.mark.parametrize(
    "damage", [lambda b: b[: len(b) // 2], lambda b: b[:-3] + b"xyz", lambda b: b"not a checkpoint"]
)
def test_a_damaged_checkpoint_is_skipped_with_a_warning(tmp_path, stream, damage):
    learner, kept = VCL(**SMALL), folder(tmp_path)
    whole = learn(learner, stream, folder=kept)
    last = kept.checkpoints / "after-0003.safetensors"
    last.write_bytes(damage(last.read_bytes()))
    listener = Listener()
    same(whole, learn(learner, stream, folder=kept, reporter=listener))
    assert any("after-0003" in word and "The one before it" in word for word in listener.words)
    assert RunFolder(tmp_path).state_after(3, learner.init(jax.random.key(0), stream.spec))


def test_states_after_every_task_are_kept_and_those_inside_are_not(tmp_path, stream):
    learn(VCL(**SMALL), stream, folder=folder(tmp_path), seconds_between_checkpoints=0.0)
    assert [p.name for p in sorted((tmp_path / "checkpoints").iterdir())] == [
        f"after-000{stage}.safetensors" for stage in (1, 2, 3)
    ]


def test_online_batches_keep_the_states_that_end_a_task(tmp_path):
    stream = online(make_stream(), 20, 0)
    learn(VCL(**SMALL), stream, folder=folder(tmp_path))
    assert stream.stages == (0, 0, 0, 1, 1, 1, 2, 2, 2)
    assert RunFolder(tmp_path).stages() == [3, 6, 8, 9]


def test_a_diverging_run_stops_and_keeps_its_checkpoints(tmp_path, stream):
    kept = folder(tmp_path)
    with pytest.raises(Interrupted):
        learn(VCL(**SMALL), stream, folder=kept, stop=StopAt(7))
    before = {p: p.read_bytes() for p in kept.checkpoints.iterdir()}
    assert before
    with pytest.raises(VclError, match="learning rate"):
        learn(VCL(**{**SMALL, "learning_rate": 1e30}), stream, folder=kept)
    assert {p: p.read_bytes() for p in before} == before


def test_measurements_are_consistent(stream):
    result = learn(VCL(**SMALL), stream)
    matrix = result["accuracy_matrix"]
    assert [[a is None for a in row] for row in matrix] == [[False, True, True], [False, False, True], [False] * 3]
    assert result["average_accuracy"] == pytest.approx(np.mean(matrix[-1]))
    assert result["scores"][-1][0]["accuracy"] == matrix[-1][0]
    assert len(result["accuracy_before_learning"]) == len(result["untrained_accuracy"]) == 3
    assert result["steps"] == 6 * sum(-(-n // 16) for n in (60, 47, 55))


def test_digits_are_learnt_in_a_row_without_forgetting(tmp_path):
    result = runs.run(runs.configure("split-digits", epochs=60), tmp_path)
    assert result["average_accuracy"] > 0.95
    assert min(result["accuracy_matrix"][-1]) > 0.85


def test_the_same_configuration_finds_its_run_again(tmp_path):
    config = runs.configure("split-digits", **SMALL)
    listener = Listener()
    first = runs.run(config, tmp_path)
    again = runs.run(config, tmp_path, reporter=listener)
    assert first == again
    assert any("complete" in word for word in listener.words)
    assert runs.from_record(RunFolder.open(tmp_path / config.name).record) == config
    assert runs.unused_root(tmp_path, config) != tmp_path


def test_configurations_that_differ_have_folders_of_their_own():
    configs = [
        runs.configure("split-digits"),
        runs.configure("split-digits", epochs=7),
        runs.configure("split-digits", seed=1),
        runs.configure("split-digits", recipe="paper"),
        runs.configure("split-digits", stream=StreamOptions(scenario="domain")),
    ]
    assert len({config.name for config in configs}) == len(configs)


def test_the_papers_recipe_has_the_papers_settings():
    split, permuted = (runs.configure(b, recipe="paper").learner for b in ("split-mnist", "permuted-mnist"))
    common = {"learning_rate": 0.005, "schedule": "constant", "train_samples": 10, "start": "fresh"}
    expected = {"hidden": (200,), "epochs": 600, "batch_size": 256, **common}
    assert {key: getattr(split, key) for key in expected} == expected
    expected = {"hidden": (100, 100), "epochs": 800, "batch_size": 1024, **common}
    assert {key: getattr(permuted, key) for key in expected} == expected
    assert runs.configure("split-mnist", recipe="previous").learner.estimator == "weights"


def test_seeds_in_parallel_processes_find_what_single_runs_find(tmp_path):
    configs = [runs.configure("split-digits", seed=s, threads=1, **SMALL) for s in (0, 1)]
    seen: list[tuple[int, RunStatus]] = []
    results = run_all(configs, tmp_path, 2, watch=lambda row, now: seen.append((row, now)))
    assert [r["seed"] for r in results] == [0, 1]
    assert results[0]["state_sha256"] != results[1]["state_sha256"]
    assert all(any(row == number and now.phase == "complete" for row, now in seen) for number in (0, 1))
    for config, result in zip(configs, results, strict=True):
        assert RunFolder.open(tmp_path / config.name).result == result


def test_compiled_programs_of_many_configurations_do_not_pile_up(tmp_path, monkeypatch):
    cleared = []
    monkeypatch.setattr(execute.jax, "clear_caches", lambda: cleared.append(1))
    runs.run(runs.configure("split-digits", **SMALL), tmp_path)
    assert not cleared
    monkeypatch.setattr(execute, "MOST_MAPPINGS", 10)
    runs.run(runs.configure("split-digits", seed=1, **SMALL), tmp_path)
    assert cleared


def test_compiled_programs_are_kept_in_the_users_folder_unless_jax_is_told_another(monkeypatch):
    names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    before = {name: getattr(jax.config, name) for name in names}
    monkeypatch.setenv("NPROC", "2")
    try:
        execute.prepare_jax(1)
        assert {name: getattr(jax.config, name) for name in names} == before, "as the tests have told it"
        monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR")
        execute.prepare_jax(1)
        assert Path(jax.config.jax_compilation_cache_dir).parts[-2:] == ("vcl", "compiled")
        assert runs.available_threads() == 1
    finally:
        for name, value in before.items():
            jax.config.update(name, value)


def test_a_failure_in_one_process_is_told(tmp_path):
    configs = [runs.configure("split-digits", threads=1, learning_rate=1e30, **SMALL)]
    with pytest.raises(VclError, match="learning rate"):
        run_all(configs, tmp_path, 1, watch=lambda row, now: None)


def test_kill_minus_nine_and_resume_equals_an_undisturbed_run_to_the_bit(tmp_path):
    flags = ["--hidden", "8", "--epochs", "60", "--num-tasks", "3", "--threads", "1"]
    expected, seconds = kill_resume.undisturbed("split-digits", tmp_path, flags)
    result, kills = kill_resume.disturbed("split-digits", tmp_path / "killed", flags, seconds, random.Random(1))
    assert kills > 0
    assert kill_resume.differences(expected, result) == []


@pytest.mark.parametrize(
    ("method", "settings", "expected"),
    [
        ("vcl", {"epochs": 3}, ("vcl", {"epochs": 3})),
        ("ewc", {"anchors": "separate", "decay": 1.0}, ("ewc", {})),
        ("gem", {"reference": 16}, ("gem-sampled", {"reference": 16})),
        ("gem", {"reference": 0}, ("gem", {})),
        ("icarl", {"emphasis": 1.0, "distillation": 1.0, "init_scale": 1.0}, ("icarl", {})),
        ("icarl", {"emphasis": 5.0}, ("icarl-labels", {"emphasis": 5.0, "distillation": 1.0, "init_scale": 1.0})),
        ("ucb", {"learning_rate": 0.001, "spread_rate": 0.001, "exponent": 1.0}, ("ucb", {"learning_rate": 0.001})),
        ("feedback-replay", {"replayed": 0.25, "decoded": 0.5, "latent": 4}, ("feedback-replay", {"latent": 4})),
    ],
)
def test_configurations_of_earlier_versions_keep_their_meaning(method, settings, expected):
    assert translated(method, settings) == expected


def test_departures_of_earlier_versions_become_variants_that_exist():
    for method, settings in (("ucb", {"exponent": 3.0}), ("clnp", {"recovery": 0}), ("ewc", {"anchors": "online"})):
        name, changed = translated(method, settings)
        assert name != method
        assert make(name, changed)
