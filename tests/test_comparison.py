"""Methods side by side: the table's numbers, order and notes, and the command that makes it."""

import csv
import json
from dataclasses import fields
from pathlib import Path

import pytest

from vcl import cli, comparison, runs, sweep
from vcl.errors import VclError
from vcl.methods import METHODS

SPEC = {"input_shape": [2, 3], "heads": [0, 1], "num_classes": 2, "scenario": "task"}
PLAIN = 6 * 4 + 4 + 2 * (4 * 2 + 2)


def result(accuracy: float, *, method: str = "finetune", parameters: int = PLAIN, kept: int = 0) -> dict:
    return {
        "method": method,
        "config": {"learner": {"hidden": [4]}},
        "accuracy_matrix": [[1.0, None], [accuracy - 0.1, accuracy + 0.1]],
        "average_accuracy": accuracy,
        "forgetting": 1.1 - accuracy,
        "backward_transfer": accuracy - 1.1,
        "forward_transfer": 0.0,
        "scores": [[], [{"calibration_error": 0.01}, {"calibration_error": 0.03}]],
        "parameters": parameters,
        "stored_examples": kept,
        "train_seconds": 2.0,
    }


def test_a_row_has_means_and_standard_deviations_over_seeds():
    row = comparison.row("ewc", [result(0.8), result(0.9)], SPEC)
    assert row.average("average_accuracy") == pytest.approx(0.85)
    assert row.spread("average_accuracy") == pytest.approx(0.1 / 2**0.5)
    assert row.average("calibration_error") == pytest.approx(0.02)
    assert row.curve == [pytest.approx([1.0, 0.8]), pytest.approx([1.0, 0.9])]
    assert row.notes == []


def test_what_is_kept_and_what_grows_is_marked_with_how_much():
    row = comparison.row("x", [result(0.8, parameters=3 * PLAIN, kept=40)], SPEC)
    assert row.notes == ["keeps 40 examples", "3.0 × the parameters"]


def test_who_is_told_the_task_is_marked_where_the_others_are_not(monkeypatch):
    monkeypatch.setattr(METHODS["finetune"], "told_the_task", True)
    assert comparison.row("x", [result(0.8)], SPEC).notes == []
    assert comparison.row("x", [result(0.8)], {**SPEC, "scenario": "domain"}).notes == ["told the task when tested"]


def test_the_best_comes_first_in_every_form():
    rows = [comparison.row(name, [result(a), result(a)], SPEC) for name, a in (("worse", 0.6), ("better", 0.8))]
    head, first, second = comparison.cells(rows)
    assert head[:2] == ["method", "accuracy (%)"]
    assert first[:2] == ["better", "80.00 ± 0.00"]
    assert second[0] == "worse"
    lines = comparison.as_markdown(rows).splitlines()
    assert lines[2].startswith("| better | 80.00 ± 0.00 |")
    assert len({line.count("|") for line in lines}) == 1
    table = list(csv.DictReader(comparison.as_csv(rows).splitlines()))
    assert [line["method"] for line in table] == ["better", "worse"]
    assert float(table[0]["average_accuracy"]) == pytest.approx(0.8)
    assert table[0]["seeds"] == "2"


def test_names_may_bring_settings_of_their_own():
    plain, changed = comparison.entries("vcl, vcl:coreset=20:recipe=paper:start=previous")
    assert (plain.method, plain.settings, plain.recipe) == ("vcl", {}, "fast")
    assert changed.settings == {"coreset": 20, "start": "previous"}
    assert changed.recipe == "paper"
    assert [entry.method for entry in comparison.entries("all")] == list(METHODS)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ("", "names no method"),
        ("vcl,vcl", "twice"),
        ("vlc", "vcl"),
        ("vcl:coreset", "method:setting=value"),
        ("vcl:coreset=many", "not a int"),
        ("vcl:cores=3", "coreset"),
        ("vcl:start=nowhere", "previous"),
        ("vcl:hidden=3", "its own flag"),
    ],
)
def test_a_list_of_methods_that_cannot_be_meant_is_refused(asked, words):
    with pytest.raises(VclError, match=words):
        comparison.entries(asked)


def test_only_settings_are_offered_where_one_is_unknown():
    with pytest.raises(VclError) as refusal:
        comparison.entries("ewc:foo=1")
    offered = str(refusal.value).partition("Known: ")[2].rstrip(".").split(", ")
    assert offered == [field.name for field in fields(METHODS["ewc"])]


def call(monkeypatch, capsys, *arguments: object) -> tuple[int, str, str]:
    monkeypatch.setattr("sys.argv", ["vcl", *map(str, arguments)])
    code = 0
    try:
        cli.main()
    except SystemExit as end:
        code = int(end.code or 0)
    return code, *capsys.readouterr()


def test_compare_runs_what_is_missing_and_leaves_out_what_is_not_defined(tmp_path, monkeypatch, capsys):
    """One method done before, one to do, one that fails, one that refuses the scenario."""
    settings = {"scenario": "class", "num_tasks": 2}
    done = runs.configure("split-digits", "finetune", threads=1, stream=runs.StreamOptions(**settings), hidden=(20,))
    before = runs.run(done, tmp_path)
    methods = "finetune,ewc:epochs=3,ewc:learning_rate=1e30,progressive"
    code, out, err = call(
        monkeypatch, capsys,
        *("compare", "split-digits", "--methods", methods, "--hidden", "20", "--jobs", 1, "--json", "--quiet"),
        *("--scenario", "class", "--num-tasks", 2, "--out", tmp_path),
    )  # fmt: skip
    rows = json.loads(out)
    assert {row["method"] for row in rows} == {"finetune", "ewc:epochs=3"}
    found = next(row for row in rows if row["method"] == "finetune")
    assert found["average_accuracy"] == [before["average_accuracy"]]
    assert found["train_seconds"] == [before["train_seconds"]]
    assert code == 2
    assert "learning_rate=1e30 failed" in err
    assert "progressive is not in the table" in err
    written = sorted(path.name for path in Path(tmp_path / "compare").iterdir())
    assert written == [f"split-digits-class-2-tasks-20.{kind}" for kind in ("csv", "md", "png", "svg")]


def test_one_failure_does_not_end_the_others(tmp_path):
    options = runs.StreamOptions(num_tasks=1)
    configs = [
        runs.configure("split-digits", "finetune", threads=1, stream=options, epochs=1, learning_rate=rate)
        for rate in (1e30, 0.001)
    ]
    bad, good = sweep.attempt_all(configs, tmp_path, 1, watch=lambda number, standing: None)
    assert isinstance(bad, VclError)
    assert isinstance(good, dict)
