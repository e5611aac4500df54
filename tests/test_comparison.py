"""Methods side by side: the table's numbers, order and notes, and the command that makes it."""

import csv
import json
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from vcl import cli, runs
from vcl.cli.compare import name_of
from vcl.core import StreamSpec
from vcl.errors import VclError
from vcl.methods import METHODS
from vcl.nets import MLP, ConvNet
from vcl.runs import archive, comparison, sweep
from vcl.runs.results import Result

SPEC = StreamSpec((2, 3), "float32", num_classes=2, heads=(0, 1), capacity=10)
NETWORK = MLP((4,))
PLAIN = 6 * 4 + 4 + 2 * (4 * 2 + 2)


SCORE = {"calibration_error": 0.01, "brier_score": 0.25, "log_likelihood": -0.5}


def result(accuracy: float, *, method: str = "finetune", parameters: int = PLAIN, kept: int = 0) -> dict:
    return {
        "method": method,
        "accuracy_matrix": [[1.0, None], [accuracy - 0.1, accuracy + 0.1]],
        "average_accuracy": accuracy,
        "forgetting": 1.1 - accuracy,
        "backward_transfer": accuracy - 1.1,
        "forward_transfer": 0.0,
        "scores": [[], [SCORE, {**SCORE, "calibration_error": 0.03}]],
        "parameters": parameters,
        "stored_examples": kept,
        "state_bytes": 1_250_000,
        "train_seconds": 2.0,
        "steps": 30,
    }


def test_a_row_has_means_and_standard_deviations_over_seeds():
    row = comparison.row("ewc", [result(0.8), result(0.9)], SPEC, NETWORK)
    assert row.average("average_accuracy") == pytest.approx(0.85)
    assert row.spread("average_accuracy") == pytest.approx(0.1 / 2**0.5)
    assert row.average("calibration_error") == pytest.approx(0.02)
    assert row.curve == [pytest.approx([1.0, 0.8]), pytest.approx([1.0, 0.9])]
    assert row.notes == []


def test_what_is_kept_and_what_grows_is_marked_with_how_much():
    row = comparison.row("x", [result(0.8, parameters=3 * PLAIN, kept=40)], SPEC, NETWORK)
    assert row.notes == ["keeps 40 examples", "3.0 × the parameters"]


def test_a_method_that_needs_the_task_identity_is_marked_where_the_others_are_not(monkeypatch):
    monkeypatch.setattr(METHODS["finetune"], "needs_task_id", True)
    domain = replace(SPEC, scenario="domain")
    assert comparison.row("x", [result(0.8)], SPEC, NETWORK).notes == []
    assert comparison.row("x", [result(0.8)], domain, NETWORK).notes == ["task identity given at test time"]


def test_the_best_comes_first_in_every_form():
    rows = [
        comparison.row(name, [result(a), result(a)], SPEC, NETWORK) for name, a in (("worse", 0.6), ("better", 0.8))
    ]
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


def test_cells_have_the_units_and_the_spread_that_their_titles_promise():
    """Percentage points for forgetting and calibration error; the standard deviation has n - 1."""
    head, line = comparison.cells([comparison.row("x", [result(0.8), result(0.9)], SPEC, NETWORK)])
    assert dict(zip(head, line, strict=True)) == {
        "method": "x",
        "accuracy (%)": "85.00 ± 7.07",
        "forgetting": "25.00 ± 7.07",
        "backward transfer": "-25.00 ± 7.07",
        "forward transfer": "0.00 ± 0.00",
        "learning accuracy (%)": "97.50 ± 3.54",
        "intransigence": "",
        "calibration error": "2.00 ± 0.00",
        "Brier score": "0.2500 ± 0.0000",
        "negative log-likelihood": "0.500 ± 0.000",
        "parameters": str(PLAIN),
        "stored examples": "0",
        "state (MB)": "1.25",
        "steps": "30",
        "training (s)": "2 ± 0",
        "CPU (s)": "",
        "note": "",
    }


def test_a_measure_that_is_not_defined_is_an_empty_cell():
    results = [{**result(a), "forward_transfer": None} for a in (0.8, 0.9)]
    row = comparison.row("x", results, SPEC, NETWORK)
    head, line = comparison.cells([row])
    assert line[head.index("forward transfer")] == ""
    (written,) = csv.DictReader(comparison.as_csv([row]).splitlines())
    assert (written["forward_transfer"], written["forward_transfer_std"]) == ("", "")
    assert row.values["forward_transfer"] == [None, None]
    # A mean over some of the seeds would mislead.
    assert comparison.row("x", [results[0], result(0.9)], SPEC, NETWORK).average("forward_transfer") is None


def test_paired_differences_have_the_interval_of_students_t():
    ours, theirs = (
        comparison.row(name, [result(a) for a in values], SPEC, NETWORK)
        for name, values in (("ours", (0.8, 0.9, 0.85)), ("theirs", (0.7, 0.85, 0.8)))
    )
    found = comparison.difference(ours, theirs)
    gaps = np.array([0.1, 0.05, 0.05])
    low, high = stats.t.interval(0.95, 2, gaps.mean(), gaps.std(ddof=1) / 3**0.5)
    assert found == pytest.approx((gaps.mean(), low, high))
    assert "| ours | +6.67 (-0.50 … +13.84) |" in comparison.differences_as_markdown([ours, theirs], theirs)
    assert found.low == pytest.approx(stats.ttest_rel((0.8, 0.9, 0.85), (0.7, 0.85, 0.8)).confidence_interval().low)
    single = comparison.row("x", [result(0.8)], SPEC, NETWORK)
    assert comparison.difference(single, theirs) is None


def test_intransigence_is_what_joint_training_learns_more_of_each_task():
    ours, joint = [result(0.7), result(0.8)], [result(0.8), result(0.85)]
    row = comparison.row("x", ours, SPEC, NETWORK, joint)
    assert row.values["intransigence"] == pytest.approx([0.05, 0.025])
    # Seeds that joint training does not have leave it undefined.
    assert comparison.row("x", ours, SPEC, NETWORK, joint[:1]).average("intransigence") is None


def test_runs_of_earlier_versions_have_no_brier_score():
    old = result(0.8)
    old["scores"][-1] = [{"calibration_error": 0.01, "log_likelihood": -0.5}]
    assert comparison.row("x", [old], SPEC, NETWORK).average("brier_score") is None


def test_parameters_are_counted_against_a_point_network_of_the_same_layers():
    images = StreamSpec((8, 8), "uint8", num_classes=2, heads=(0, 1), capacity=10)
    convolutions = 9 * 3 + 3
    network = ConvNet((3,), (5,))
    assert comparison.plain_parameters(network, images) == convolutions + (4 * 4 * 3 * 5 + 5) + 2 * (5 * 2 + 2)


def test_names_may_bring_settings_of_their_own():
    plain, changed, conv = comparison.entries("vcl, vcl:coreset=20:recipe=paper:start=previous,ewc:network=conv")
    assert conv.settings == {"network": "conv"}
    switched = comparison.entries("gvcl:film=true,gvcl:film=false:antithetic=true")
    assert [entry.settings for entry in switched] == [{"film": True}, {"film": False, "antithetic": True}]
    assert (plain.method, plain.settings, plain.recipe) == ("vcl", {}, None)
    assert changed.settings == {"coreset": 20, "start": "previous"}
    assert changed.recipe == "paper"
    assert [entry.method for entry in comparison.entries("all")] == list(METHODS)
    assert [entry.label for entry in comparison.entries("all,vcl:coreset=20")] == [*METHODS, "vcl:coreset=20"]


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ("", "names no method"),
        ("vcl,vcl", "twice"),
        ("all,ewc", "twice"),
        ("vlc", "vcl"),
        ("vcl:coreset", "method:setting=value"),
        ("vcl:coreset=many", "not a whole number"),
        ("ewc:strength=high", "not a number"),
        ("ewc:network=cnn", "conv"),
        ("vcl:cores=3", "coreset"),
        ("vcl:start=nowhere", "previous"),
        ("vcl:hidden=3", "Use --hidden, for all methods alike"),
        ("vcl:channels=3", "Use `vcl run`"),
        ("gvcl:film=yes", "Known: true, false"),
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
        *("--scenario", "class", "--num-tasks", 2, "--out", tmp_path, "--uncertainty"),
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
    name = "split-digits-class-2-tasks-20"
    also = [f"{name}-uncertainty.{kind}" for kind in ("json", "md", "png", "svg")]
    assert written == sorted([*(f"{name}.{kind}" for kind in ("csv", "md", "png", "svg")), *also])
    measured = json.loads((tmp_path / "compare" / also[0]).read_text())["finetune"]
    assert measured["accuracy"]["values"] == pytest.approx([before["average_accuracy"]])
    table = (tmp_path / "compare" / also[1]).read_text()
    assert f"| finetune | 1 | {100 * before['average_accuracy']:.2f} | " in table
    assert "| noise, total | noise, epistemic |" in table


def test_results_that_are_kept_are_not_run_again(tmp_path, monkeypatch, capsys):
    options = runs.StreamOptions(num_tasks=2)
    for seed in (0, 1):
        config = runs.configure("split-digits", "finetune", seed=seed, threads=1, stream=options)
        made = {**result(0.5 + 0.1 * seed), "benchmark": "split-digits", "seed": seed, "run": config.name}
        made |= dict.fromkeys(Result.__required_keys__ - made.keys()) | {"config": config.settings}
        archive.keep(made, tmp_path / "results")
    asked = ("compare", "split-digits", "--methods", "finetune", "--num-tasks", 2, "--out", tmp_path / "runs")
    kept = ("--results", tmp_path / "results", "--json", "--quiet")
    code, out, _ = call(monkeypatch, capsys, *asked, "--seeds", 2, *kept)
    assert code == 0
    assert json.loads(out)[0]["average_accuracy"] == [0.5, 0.6]
    assert not list((tmp_path / "runs").glob("split-digits-*"))
    # One that was kept for its accuracies alone is not enough for a table.
    partial = {name: value for name, value in made.items() if name not in ("steps", "parameters")}
    (tmp_path / "results" / "partial.json").write_text(json.dumps({**partial, "seed": 2}))
    monkeypatch.setattr(
        sweep, "attempt_all", lambda configs, *_, **__: [{**made, "run": one.name, "seed": 2} for one in configs]
    )
    _, out, _ = call(monkeypatch, capsys, *asked, "--seeds", 3, *kept)
    assert json.loads(out)[0]["average_accuracy"] == [0.5, 0.6, 0.6]
    (added,) = (tmp_path / "results" / "compare" / "runs").iterdir()
    assert json.loads(added.read_text())["seed"] == 2
    code, _, err = call(monkeypatch, capsys, *asked, *kept, "--uncertainty")
    assert (code, "needs run folders" in err) == (2, True)


def test_every_stream_has_a_table_of_its_own(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sweep, "attempt_all", lambda configs, *_, **__: [result(0.5) for _ in configs])
    streams = [
        (),
        ("--examples", 60),
        ("--online", 40),
        ("--online", 50),
        ("--validation", 0.1),
        ("--validation", 0.2),
    ]
    for flags in streams:
        asked = ("compare", "split-digits", "--methods", "finetune", "--out", tmp_path, "--quiet", *flags)
        assert call(monkeypatch, capsys, *asked)[0] == 0
    flags = {"", "-60-examples", "-online-40", "-online-50", "-validation-0.1", "-validation-0.2"}
    assert {path.name for path in tmp_path.glob("compare/*.md")} == {f"split-digits{flag}.md" for flag in flags}
    first = [name_of("permuted-digits", runs.StreamOptions(permute_first=it), None, None) for it in (False, True)]
    assert first == ["permuted-digits", "permuted-digits-permute-first"]


def test_methods_that_refuse_the_network_are_listed_below_the_table(tmp_path, monkeypatch, capsys):
    code, out, err = call(
        monkeypatch, capsys,
        *("compare", "split-digits", "--methods", "finetune:epochs=1,clnp", "--network", "conv", "--hidden", "4"),
        *("--num-tasks", 1, "--out", tmp_path, "--jobs", 1, "--quiet"),
    )  # fmt: skip
    assert code == 0
    assert "finetune:epochs=1" in out
    assert "clnp is not in the table: " in err
    (run,) = tmp_path.glob("split-digits-finetune-*")
    assert runs.StoredRun.open(run).record["config"]["learner"]["network"] == "conv"
    assert (tmp_path / "compare" / "split-digits-1-tasks-conv-4.md").exists()


def test_a_mistake_beside_a_network_is_not_taken_for_a_refusal(tmp_path, monkeypatch, capsys):
    arguments = (
        "compare",
        "split-digits",
        "--methods",
        "finetune:epochs=-1",
        "--network",
        "conv",
        "--out",
        tmp_path,
    )
    code, _, err = call(monkeypatch, capsys, *arguments)
    assert code == 2
    assert "--epochs must be above 0" in err


def compared(monkeypatch, capsys, tmp_path, *arguments: object) -> tuple[list[dict], str, str]:
    """Rows, table and messages of a comparison whose runs are as accurate as their learning rates tell."""

    def attempt(configs, *_, **__):
        rates = [config.learner.learning_rate for config in configs]
        return [
            VclError("It broke.") if rate > 1 else result(rate, method=config.method)
            for rate, config in zip(rates, configs, strict=True)
        ]

    monkeypatch.setattr(sweep, "attempt_all", attempt)
    asked = ("compare", "split-digits", "--num-tasks", 2, "--out", tmp_path, "--json", "--quiet", *arguments)
    _, out, err = call(monkeypatch, capsys, *asked)
    (table,) = tmp_path.glob("compare/*.md")
    return json.loads(out), table.read_text(), err


RATES = "ewc:learning_rate=0.5,finetune:learning_rate=0.7,si:learning_rate=9,progressive"


@pytest.mark.parametrize(
    ("reference", "flags", "reason"),
    [
        ("ewc:learning_rate=0.5", ("--seeds", 2), None),
        ("ewc:learning_rate=0.5", (), "which need at least two seeds: --seeds 2"),
        ("si:learning_rate=9", ("--seeds", 2), "since it is not in the table"),
        ("progressive", ("--seeds", 2, "--scenario", "class"), "since it is not in the table"),
        ("si:learning_rate=0.5", ("--seeds", 2, "--methods", "si:learning_rate=0.5"), "since no other method is in"),
    ],
)
def test_differences_are_tabulated_or_it_is_said_why_not(reference, flags, reason, tmp_path, monkeypatch, capsys):
    methods = () if "--methods" in flags else ("--methods", RATES)
    rows, table, err = compared(monkeypatch, capsys, tmp_path, "--reference", reference, *methods, *flags)
    assert ("Paired differences" in table) == (reason is None)
    assert any("difference" in row for row in rows) == (reason is None)
    said = f"There are no paired differences to {reference}, {reason}"
    assert (said in err) if reason else ("no paired differences" not in err)


@pytest.mark.parametrize(
    ("methods", "bound"),
    [
        ("joint:learning_rate=0.8", 0.8),
        ("joint:learning_rate=0.8,joint:learning_rate=0.9", 0.8),
        ("joint:learning_rate=0.9,joint:learning_rate=9,joint:learning_rate=0.7", 0.9),
        ("joint:learning_rate=9", None),
        ("joint-vcl:learning_rate=0.8", None),
    ],
)
def test_intransigence_is_measured_against_joint_training_with_settings_too(
    methods, bound, tmp_path, monkeypatch, capsys
):
    rows, _, err = compared(monkeypatch, capsys, tmp_path, "--methods", f"ewc:learning_rate=0.5,{methods}")
    found = next(row for row in rows if row["method"] == "ewc:learning_rate=0.5")
    # Half of it: all learn the first task alike.
    assert found["intransigence"] == ([None] if bound is None else [pytest.approx((bound - 0.5) / 2)])
    several = sum(row["method"].startswith("joint:") for row in rows) > 1
    assert (f"Intransigence is measured against joint:learning_rate={bound}, of" in err) == several


def test_joint_training_without_settings_is_the_first_choice(tmp_path, monkeypatch, capsys):
    rows, _, err = compared(monkeypatch, capsys, tmp_path, "--methods", "joint:learning_rate=0.8,joint")
    assert next(row for row in rows if row["method"] == "joint")["intransigence"] == [0.0]
    assert "Intransigence is measured against joint, of joint:learning_rate=0.8, joint." in err


def test_one_failure_does_not_end_the_others(tmp_path):
    options = runs.StreamOptions(num_tasks=1)
    configs = [
        runs.configure("split-digits", "finetune", threads=1, stream=options, epochs=1, learning_rate=rate)
        for rate in (1e30, 0.001)
    ]
    bad, good = sweep.attempt_all(configs, tmp_path, 1, watch=lambda number, status: None)
    assert isinstance(bad, VclError)
    assert isinstance(good, dict)
