"""vcl sweep: grids and searches, on validation data, resumed by the same command, divided over machines."""

import json
from pathlib import Path

import equal_search
import pytest
from test_cli import refused, vcl  # noqa: F401

from vcl.errors import VclError
from vcl.methods import METHODS
from vcl.runs import RunFolder, plans, tuning
from vcl.runs.events import Channel, Evaluated, Said, Silent, from_json
from vcl.runs.sinks import MLflow, measurements
from vcl.runs.status import RunStatus
from vcl.runs.sweep import Pruned

GRID = """
benchmark = "split-digits"
method = "finetune"
seeds = 2
stream = {num_tasks = 2}
settings = {hidden = [8], batch_size = 32, epochs = 3}
[grid]
learning_rate = [0.0001, 0.01]
"""
SEARCH = """
benchmark = "split-digits"
method = "finetune"
stream = {num_tasks = 2}
settings = {hidden = [8], batch_size = 32}
[search]
trials = 4
sampler = "random"
pruner = "median"
[search.space]
epochs = {low = 1, high = 3}
learning_rate = {low = 0.0001, high = 0.01, log = true}
hidden = {choices = [[4], [8]]}
"""


@pytest.fixture
def write(tmp_path):
    def write(text: str) -> Path:
        path = tmp_path / "mine.toml"
        path.write_text(text)
        return path

    return write


def test_a_grid_is_run_in_parts_and_put_together(vcl, write, tmp_path):  # noqa: F811
    common = ("sweep", write(GRID), "--out", tmp_path / "runs", "--jobs", "1", "--quiet", "--json")
    for part, expected in (("1/2", [0]), ("2/2", [1])):
        answer = vcl(*common, "--shard", part)
        assert answer.code == 0, answer.err
        wanted = [plans.read_plan(write(GRID)).candidates()[n] for n in expected]
        assert sorted(map(str, wanted)) == sorted(str(row["settings"]) for row in json.loads(answer.out))
    results = {path: path.read_bytes() for path in tmp_path.glob("runs/*/result.json")}
    assert len(results) == 4
    whole = vcl(*common)
    rows = json.loads(whole.out)
    assert {path: path.read_bytes() for path in tmp_path.glob("runs/*/result.json")} == results, "none is made twice"
    accuracies = [row["accuracy"] for row in rows]
    assert accuracies == sorted(accuracies, reverse=True)
    assert rows[0]["settings"] == {"learning_rate": 0.01}
    assert all(len(row["accuracies"]) == 2 for row in rows)
    record = RunFolder(next(iter(results)).parent).record
    assert record["config"]["stream"]["validation"] == 0.1
    assert "on split-digits, accuracy on validation data" in (tmp_path / "runs" / "mine.md").read_text()


@pytest.mark.filterwarnings("error")
def test_a_search_continues_in_its_storage(write, tmp_path):
    plan = plans.read_plan(write(SEARCH))
    tried = []

    class Killed(Exception):
        pass

    def attempt(configs, prune):
        tried.extend(config.name for config in configs)
        prune(0, RunStatus("running", scored=1, accuracies=(0.5,)))
        if len(tried) == 3:
            raise Killed
        return [{"average_accuracy": config.learner.learning_rate} for config in configs]

    with pytest.raises(Killed):
        tuning.search(plan, tmp_path, 1, attempt)
    found = tuning.search(plan, tmp_path, 1, attempt)
    assert len(found) == 4
    assert tried[2] == tried[3], "the trial under way is made again"
    assert len(set(tried)) == 4
    best = plans.best_first(found)[0]
    assert best.accuracy == max(c.settings["learning_rate"] for c in found)
    assert {type(c.settings["hidden"]) for c in found} == {list}
    assert tuning.search(plan, tmp_path, 1, attempt) == found
    assert len(tried) == 5


def test_a_search_keeps_the_accuracy_of_each_seed_and_why_trials_failed(write, tmp_path):
    plan = plans.read_plan(write("seeds = 2\n" + SEARCH))
    outcomes = iter([[0.25, 0.75], [VclError("No room."), 0.5], [0.5, 0.5], [0.5, 0.5]])

    def attempt(configs, prune):
        return [o if isinstance(o, VclError) else {"average_accuracy": o} for o in next(outcomes)]

    found = tuning.search(plan, tmp_path, 1, attempt)
    assert [c.accuracies for c in found] == [(0.25, 0.75), (), (0.5, 0.5), (0.5, 0.5)]
    assert [c.note for c in found] == ["", "No room.", "", ""]


def test_the_first_trial_can_be_the_recipe(write, tmp_path):
    text = SEARCH.replace("trials = 4", "trials = 3\nrecipe_first = true").replace("high = 3", "high = 100")
    plan = plans.read_plan(write(text))
    found = tuning.search(plan, tmp_path, 1, lambda configs, prune: [{"average_accuracy": 0.5} for _ in configs])
    assert len(found) == 3
    assert found[0].settings == plans.recipe_of(plan) == {"epochs": 30, "learning_rate": 0.001, "hidden": [8]}
    assert found[1].settings != found[0].settings
    narrow = plans.read_plan(write(text.replace("high = 100", "high = 3")))
    with pytest.raises(VclError, match="the recipe has epochs = 30, which"):
        tuning.search(narrow, tmp_path / "narrow", 1, lambda configs, prune: [])
    with pytest.raises(VclError, match="the recipe has further_epochs = None, which"):
        tuning.stored({"further_epochs": None}, {"further_epochs": {"low": 1, "high": 5}})


@pytest.mark.parametrize(
    ("old", "new", "changed"),
    [
        ('"split-digits"', '"permuted-digits"', "benchmark"),
        ("num_tasks = 2", "num_tasks = 3", "stream"),
        ("[[4], [8]]", "[[4], [8], [16]]", "space"),
    ],
)
def test_a_search_does_not_take_the_trials_of_a_file_that_was_changed(write, tmp_path, old, new, changed):
    def attempt(configs, prune):
        return [{"average_accuracy": 0.5} for _ in configs]

    plan = plans.read_plan(write(SEARCH))
    tuning.search(plan, tmp_path, 1, attempt)
    longer = plans.read_plan(write(SEARCH.replace("trials = 4", "trials = 5")))
    assert len(tuning.search(longer, tmp_path, 1, attempt)) == 5
    other = plans.read_plan(write(SEARCH.replace(old, new).replace("trials = 4", "trials = 6")))
    with pytest.raises(VclError, match=rf"has changed since its search began \({changed}\).*mine.optuna.journal"):
        tuning.search(other, tmp_path, 1, attempt)


def test_a_search_of_an_earlier_version_continues_unless_its_choices_are_others(write, tmp_path, monkeypatch):
    def attempt(configs, prune):
        return [{"average_accuracy": 0.5} for _ in configs]

    with monkeypatch.context() as before:
        before.setattr(tuning, "check_same", lambda *_: None)
        tuning.search(plans.read_plan(write(SEARCH)), tmp_path, 1, attempt)
    more = plans.read_plan(write(SEARCH.replace("[4], [8]", "[4], [8], [16]").replace("trials = 4", "trials = 5")))
    chosen = plans.read_plan(write(SEARCH.replace("epochs = {low = 1, high = 3}", "epochs = {choices = [1, 3]}")))
    for other in (more, chosen):
        with pytest.raises(VclError, match=r"since its search began \(space\)"):
            tuning.search(other, tmp_path, 1, attempt)
    plan = plans.read_plan(write(SEARCH.replace("trials = 4", "trials = 5")))
    assert len(tuning.search(plan, tmp_path, 1, attempt)) == 5
    assert tuning.open_study(plan, plan.search, tmp_path).user_attrs["plan"]["method"] == '"finetune"'


def test_the_recipe_and_the_best_trials_enter_the_finals_on_all_tasks(tmp_path, monkeypatch):
    plan = equal_search.plan_for("split-digits", "finetune", trials=4, num_tasks=2)
    rates = {0.001: 0.5, 0.002: 0.9, 0.003: 0.7, 0.004: None}
    trials = [plans.Candidate({"learning_rate": r}, () if a is None else (a,)) for r, a in rates.items()]
    entered = []

    def attempt_all(configs, out, jobs, *, watch):
        entered.extend((config.learner.learning_rate, config.stream.num_tasks, config.seed) for config in configs)
        return [{"average_accuracy": 0.1 * number} for number, _ in enumerate(configs)]

    monkeypatch.setattr(equal_search.sweep, "attempt_all", attempt_all)
    outcome = equal_search.finals(plan, trials, 2, tmp_path)
    assert entered == [(0.001, None, 100), (0.002, None, 100), (0.003, None, 100)]
    assert [one["accuracy"] for one in outcome] == pytest.approx([0.0, 0.1, 0.2])
    table = equal_search.summary([{**equal_search.as_document(plan, trials), "finals": outcome}])
    assert "| learning_rate 0.002 | 4 | 0 | 0.00, 10.00, 20.00 (learning_rate 0.003) |" in table


def test_finals_of_which_a_run_failed_are_not_taken_for_complete(tmp_path, monkeypatch):
    plan = equal_search.plan_for("split-digits", "finetune", trials=4, num_tasks=2)
    failed = [VclError("Another process has the run.")]
    monkeypatch.setattr(equal_search.sweep, "attempt_all", lambda *_, **__: failed)
    with pytest.raises(VclError, match=r"final run split-digits-finetune-.* failed: Another process"):
        equal_search.finals(plan, [plans.Candidate({"learning_rate": 0.001}, (0.5,))], 0, tmp_path)


@pytest.mark.parametrize("benchmark", ["split-mnist", "permuted-mnist"])
@pytest.mark.parametrize("method", METHODS)
def test_the_equal_searches_have_a_space_for_every_method_with_its_recipe_in_it(benchmark, method):
    plan = equal_search.plan_for(benchmark, method, trials=15, num_tasks=None)
    start = tuning.stored(plans.recipe_of(plan), plan.search.space)
    assert start.keys() == plan.search.space.keys()
    assert 2 <= len(start) <= 3


def test_a_trial_that_was_killed_before_it_had_settings_gets_them(write, tmp_path):
    plan = plans.read_plan(write(SEARCH.replace("trials = 4", "trials = 2")))
    study = tuning.open_study(plan, plan.search, tmp_path)
    study.ask()
    found = tuning.search(plan, tmp_path, 1, lambda configs, prune: [{"average_accuracy": 0.5} for _ in configs])
    assert [sorted(candidate.settings) for candidate in found] == [["epochs", "hidden", "learning_rate"]] * 2
    assert [candidate.accuracy for candidate in found] == [0.5, 0.5]
    journal = next(tmp_path.glob("*.journal"))
    journal.write_bytes(b"not JSON\n" + journal.read_bytes())
    with pytest.raises(VclError, match="cannot be read by Optuna"):
        tuning.search(plan, tmp_path, 1, lambda configs, prune: [])


def test_the_pruner_is_asked_after_each_task(write, tmp_path):
    plan = plans.read_plan(write(SEARCH.replace("trials = 4", "trials = 7")))
    asked = []

    def attempt(configs, prune):
        accuracy = 0.9 if len(asked) < 6 else 0.1
        answers = [prune(0, RunStatus("running", scored=n, accuracies=(accuracy,))) for n in (1, 1, 2)]
        asked.append(answers)
        return [Pruned("early")] if any(answers) else [{"average_accuracy": accuracy}]

    found = tuning.search(plan, tmp_path, 1, attempt)
    assert asked[:6] == [[False] * 3] * 6
    assert any(asked[6])
    assert [c.note for c in found] == [""] * 6 + ["PRUNED"]


def test_a_search_by_the_command_line_makes_real_runs(vcl, write, tmp_path):  # noqa: F811
    text = SEARCH.replace("trials = 4", "trials = 2").replace('"median"', '"none"')
    arguments = ("sweep", write(text), "--out", tmp_path / "runs", "--jobs", "1", "--quiet", "--json")
    answer = vcl(*arguments)
    assert answer.code == 0, answer.err
    rows = json.loads(answer.out)
    assert len(rows) == 2
    found = {RunFolder(path.parent).result["average_accuracy"] for path in tmp_path.glob("runs/*/result.json")}
    assert {row["accuracy"] for row in rows} == found
    refused(vcl(*arguments, "--shard", "1/2"), "--shard divides a grid")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("benchmark = 3", "needs a benchmark"),
        ("benchmark = 'split-digits'", "either a [grid] or a [search]"),
        ("benchmark = 'split-digit'\n[grid]\nepochs = [1]", "Did you mean 'split-digits'"),
        ("benchmark = 'split-digits'\ngird = 1", "Did you mean 'grid'"),
        ("benchmark = 'split-digits'\n[grid]\nepoch = [1]", "Did you mean 'epochs'"),
        ("benchmark = 'split-digits'\n[grid]\nepochs = 1", "must be a list"),
        ("benchmark = 'split-digits'\n[grid]\nepochs = [1, -1]", "--epochs must be above 0"),
        ("benchmark = 'split-digits'\nmethod = 3\n[grid]\nepochs = [1]", "method must be a name"),
        ("benchmark = 'split-digits'\nseeds = 0\n[grid]\nepochs = [1]", "seeds"),
        ("benchmark = 'split-digits'\nstream = 3\n[grid]\nepochs = [1]", "[stream]"),
        ("benchmark = 'split-digits'\nstream = {validation = 0.0}\n[grid]\nepochs = [1]", "validation above 0"),
        ("benchmark = 'split-digits'\n[search]\ntrials = 0", "trials"),
        ("benchmark = 'split-digits'\n[search]\ntrials = 1", "[search.space]"),
        ("benchmark = 'split-digits'\n[search]\ntrials = 1\nspace = {epochs = {low = 1}}", "low = ... and high"),
        (
            "benchmark = 'split-digits'\n[search]\ntrials = 1\nsampler = 'x'\nspace = {epochs = {choices = [1]}}",
            "sampler",
        ),
        (
            "benchmark = 'split-digits'\n[search]\ntrials = 1\nspace = {epochs = {low = 3, high = 1}}",
            "with low at most high",
        ),
        (
            "benchmark = 'split-digits'\n[search]\ntrials = 1\nspace = {epochs = {low = 0, high = 1, log = true}}",
            "with low at most high",
        ),
        (
            "benchmark = 'split-digits'\n[search]\ntrials = 1\nspace = {epochs = {choices = []}}",
            "with low at most high",
        ),
        (
            "benchmark = 'split-digits'\n[search]\ntrials = 1\nspace = {epochs = {low = 1, high = 9, step = 0}}",
            "with low at most high",
        ),
        ("benchmark = ", "cannot be read as TOML"),
        ("x = " + "[" * 20_000, "cannot be read as TOML"),
    ],
)
def test_a_file_that_makes_no_sense_is_refused(vcl, write, tmp_path, text, words):  # noqa: F811
    refused(vcl("sweep", write(text), "--out", tmp_path / "runs"), words)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("part", ["3/2", "0/2", "1", "a/b", "1/2/3"])
def test_a_part_that_is_none_is_refused(part):
    with pytest.raises(VclError, match="--shard"):
        plans.shard([{}], part)


# Sinks

SCORES = {
    "accuracy": 0.75,
    "log_likelihood": -0.5,
    "calibration_error": 0.0,
    "total_entropy": 0.1,
    "aleatoric_entropy": 0.1,
}


def test_a_sink_that_fails_is_reported_and_the_others_go_on():
    class Broken(Silent):
        def receive(self, event):
            raise RuntimeError("no network")

    heard = []

    class Good(Silent):
        def receive(self, event):
            heard.append(event)

    channel = Channel([Broken(), Good()])
    event = Evaluated(0, 0, True, [SCORES])
    for _ in range(2):
        channel.receive(event)
    said = [e for e in heard if isinstance(e, Said)]
    assert [e for e in heard if e == event] == [event, event]
    assert len(said) == 1
    assert said[0].urgent
    assert "Broken failed" in said[0].message
    assert "no network" in said[0].message


def test_trackers_get_every_measurement():
    class Client:
        def __init__(self):
            self.logged = []

        def log_metric(self, run_id, name, value, *, step):
            self.logged.append((run_id, name, value, step))

    client = Client()
    MLflow(client, "run-1").receive(Evaluated(1, 1, True, [SCORES, {**SCORES, "accuracy": 0.25}, SCORES]))
    assert ("run-1", "accuracy/task-2", 0.25, 2) in client.logged
    assert ("run-1", "accuracy/average", 0.5, 2) in client.logged
    assert not any("task-3" in name for _, name, _, _ in client.logged), "it is not learnt yet"


def test_tensorboard_files_have_what_the_store_has(vcl, tmp_path):  # noqa: F811
    from tensorboardX.proto.event_pb2 import Event

    arguments = ("run", "split-digits", "--method", "finetune", "--epochs", "3", "--num-tasks", "2", "--hidden", "8")
    answer = vcl(*arguments, "--out", tmp_path / "runs", "--tensorboard", tmp_path / "board", "--json")
    assert answer.code == 0, answer.err
    (folder,) = (tmp_path / "runs").iterdir()
    (file,) = (tmp_path / "board" / folder.name).iterdir()
    found, contents = {}, file.read_bytes()
    while contents:
        size = int.from_bytes(contents[:8], "little")
        event = Event.FromString(contents[12 : 12 + size])
        contents = contents[16 + size :]
        found |= {(value.tag, event.step): value.simple_value for value in event.summary.value}
    expected = {}
    for line in RunFolder(folder).events():
        expected |= {(name, step): value for name, value, step in measurements(from_json(line))}
    assert found.keys() == expected.keys()
    assert found == pytest.approx(expected)
