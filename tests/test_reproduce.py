"""vcl reproduce: the paper's cells, what counts as run, estimates, and that nothing is lost."""

import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import vcl
from vcl.cli.app import start
from vcl.runs import paper, reproduction
from vcl.runs.archive import kept_results
from vcl.runs.paper import OWN, TABLES, Cell
from vcl.runs.reproduction import accuracy, estimate, survey
from vcl.training import Fitter

RESULTS = Path(__file__).parent.parent / "results"
TINY = Cell(
    "VCL, tiny", "12.3 ± 4", "split-digits", recipe="fast", num_tasks=2, settings={"hidden": (5,), "epochs": 2}
)


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(paper, "TABLES", {"table1": (TINY,)})
    monkeypatch.setattr(paper, "OWN", ())
    monkeypatch.setattr(reproduction, "MEASURED_SECONDS", 0.01)
    return tmp_path


def test_every_cell_of_the_paper_is_a_run_that_can_be_made() -> None:
    assert [len(table) for table in TABLES.values()] == [6, 23], "six cells, 21 rows and two numbers of the text"
    for table in TABLES.values():
        names = [cell.name for cell in table]
        assert len(set(names)) == len(names)
        for cell in table:
            configs = cell.configs()
            assert len(configs) == cell.seeds
            assert all(config.threads == 1 for config in configs)
    assert [cell.settings.get("coreset", 0) for cell in OWN] == [0, 40, 0, 200]


def test_a_recipe_asked_for_is_that_of_the_papers_own_results_only() -> None:
    own, quoted = TABLES["table1"][0], TABLES["table1"][4]
    assert own.configs(recipe="paper-code")[0].recipe == "paper-code"
    assert quoted.configs(recipe="paper-code")[0].recipe == "published"


def test_results_that_are_kept_count_as_run() -> None:
    """The two seeds of the paper's recipe in results/ were run before there was a choice of noise."""
    kept = kept_results(RESULTS)
    cell = TABLES["table1"][0]
    found = survey(cell, cell.configs(3), Path("nowhere"), kept)
    assert [result["seed"] for result in found.results] == [0, 1]
    assert [config.seed for config in found.missing] == [2]


def test_estimates_grow_with_epochs_and_tasks() -> None:
    def seconds(epochs: int, tasks: int) -> float:
        options = vcl.StreamOptions(num_tasks=tasks)
        return estimate(vcl.configure("split-digits", hidden=(5,), epochs=epochs, stream=options))

    short = seconds(10, 2)
    assert 0 < short < 60
    # Measured, so with room for a busy machine.
    assert seconds(1000, 2) > 10 * short
    assert seconds(1000, 5) > 1.2 * seconds(1000, 2)


def test_joint_training_is_estimated_too() -> None:
    settings = {"hidden": (5,), "epochs": 1, "stream": vcl.StreamOptions(num_tasks=2)}
    assert estimate(vcl.configure("split-digits", "joint-vcl", **settings)) > 0


def test_all_fits_of_a_task_are_estimated_without_compiling(monkeypatch: pytest.MonkeyPatch) -> None:
    now, compiled = [0.0], set()

    def observe(_: object, task: object, examples: object, fitter: Fitter) -> None:
        for phase, epochs, seconds in (("start", 100, 3.0), ("train", 1, 2.0)):
            if fitter.recorder.restore(phase, None):
                continue
            now[0] += seconds + (0.0 if phase in compiled else 1000.0)
            compiled.add(phase)
            fitter.recorder.advance(phase, 1, epochs, np.zeros(epochs))

    monkeypatch.setattr(reproduction.learning, "observe", observe)
    monkeypatch.setattr(reproduction.time, "process_time", lambda: now[0])
    config = vcl.configure("split-digits", stream=vcl.StreamOptions(num_tasks=2))
    assert estimate(config) == pytest.approx(2 * (100 * 3.0 + 2.0))


def test_an_estimate_from_some_examples_counts_the_steps_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reproduction, "FEWEST_EXAMPLES", 40)
    monkeypatch.setattr(reproduction, "FEWEST_STEPS", 1)
    monkeypatch.setattr(reproduction, "fitting_seconds", lambda observe: 3.0)
    options = vcl.StreamOptions(num_tasks=2)
    config = vcl.configure("split-digits", "finetune", hidden=(5,), epochs=3, batch_size=16, stream=options)
    examples = len(vcl.build("split-digits", options, seed=0).train(0).labels)
    assert estimate(config) == pytest.approx(3.0 * 2 * -(-examples // 16) / 3)


def test_mean_and_spread_of_seeds() -> None:
    assert accuracy([]) == "not run"
    assert accuracy([{"average_accuracy": 0.5}]) == "50.00"  # type: ignore[typeddict-item]


def test_what_is_missing_is_run_and_what_was_deleted_comes_back(
    tiny: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paper, "OWN", (TINY,))
    command = ["reproduce", "table1", "--seeds", "1", "--jobs", "1", "--quiet"]
    start([*command, "--dry-run"])
    assert "core-hours in all" in capsys.readouterr().err
    assert not (tiny / "runs").exists(), "a dry run runs nothing"
    start(command)
    table = (tiny / "results" / "reproduce" / "table1-paper.md").read_text()
    assert "| VCL, tiny | 12.3 ± 4 |" in table
    kept = next((tiny / "results" / "reproduce").glob("*.json"))
    result = json.loads(kept.read_text())
    assert f"{100 * result['average_accuracy']:.2f}" in table
    capsys.readouterr()

    start(command)
    assert "Nothing is missing" in capsys.readouterr().err
    shutil.rmtree(tiny / "runs")
    start(command)
    assert "Nothing is missing" in capsys.readouterr().err, "the kept result counts"
    kept.unlink()
    start(command)
    again = json.loads(kept.read_text())
    assert again["state_sha256"] == result["state_sha256"]

    quoted = json.dumps({**result, "state_sha256": "of another machine"})
    kept.write_text(quoted)
    capsys.readouterr()
    start(["reproduce", "units", *command[2:]])
    assert kept.read_text() == quoted, "nothing that is kept is replaced"
    assert "stays. To keep" in " ".join(capsys.readouterr().err.split())


def test_a_name_that_no_row_has(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        start(["reproduce", "table1", "--only", "nothing"])
    message = " ".join(capsys.readouterr().err.split())
    assert "No row of 'table1' has 'nothing' in its name. There are: VCL, tiny." in message


def test_a_row_asked_for_leaves_the_others_in_the_table(
    tiny: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    other = dataclasses.replace(TINY, name="Another, tiny", settings={"hidden": (6,), "epochs": 1})
    monkeypatch.setattr(paper, "TABLES", {"table1": (TINY, other), "table2": (other,)})
    command = ["reproduce", "all", "--seeds", "1", "--jobs", "1", "--quiet"]
    start([*command, "--only", "VCL"])
    table = tiny / "results" / "reproduce" / "table1-paper.md"
    first = next(line for line in table.read_text().splitlines() if line.startswith("| VCL, tiny"))
    assert "| Another, tiny | 12.3 ± 4 | not run |" in table.read_text()
    assert not table.with_name("table2-paper.md").exists(), "none of its rows was asked for"
    capsys.readouterr()

    start([*command, "--only", "Another"])
    assert first in table.read_text(), "a row that is there already stays"
    assert "not run" not in table.read_text()
    shown = capsys.readouterr().out
    assert "Another, tiny" in shown
    assert "VCL, tiny" not in shown, "only what was asked for is shown"

    start([*command, "--dry-run"])
    assert first in capsys.readouterr().out, "a dry run shows what there is"


def test_units_are_counted_beside_those_of_other_runs(
    tiny: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paper, "OWN", (TINY,))
    folder = tiny / "results" / "reproduce"
    folder.mkdir(parents=True)
    table = folder / "units-paper.md"
    earlier = "| an-earlier-run | 0.05 | 1, 2 |"
    table.write_text(f"| run | tolerance | active |\n| --- | ---: | --- |\n{earlier}\n")
    start(["reproduce", "units", "--seeds", "1", "--jobs", "1", "--quiet", "--json"])
    counted = json.loads(capsys.readouterr().out)["units"]
    assert [one["tolerance"] for one in counted] == [0.0002, 0.002, 0.01, 0.05]
    strict = counted[0]
    assert len(strict["active"]) == 1, "one hidden layer"
    assert len(strict["active"][0]) == 2, "two tasks"
    assert 0 <= min(strict["active"][0]) <= max(strict["active"][0]) <= 5
    assert earlier in table.read_text()
    assert f"| {strict['run']} | 0.0002 | {', '.join(map(str, strict['active'][0]))} |" in table.read_text()

    table.write_text("something else\n\n| by hand |\n")
    with pytest.raises(SystemExit):
        start(["reproduce", "units", "--seeds", "1", "--jobs", "1", "--quiet"])
    assert "is not a table" in capsys.readouterr().err
    assert "by hand" in table.read_text()


def test_results_must_be_a_folder(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tiny / "results").write_text("a file")
    with pytest.raises(SystemExit):
        start(["reproduce", "table1"])
    assert "is a file" in capsys.readouterr().err
