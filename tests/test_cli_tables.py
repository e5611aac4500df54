"""What users read: the printed numbers, in the units that stand beside them."""

import pytest
from rich.console import Console

from vcl.cli import tables

SCORES = {
    "accuracy": 0.9,
    "log_likelihood": -0.25,
    "brier_score": 0.125,
    "total_entropy": 0.5,
    "aleatoric_entropy": 0.375,
}


def result(
    seed: int = 0, *, accuracy: float = 0.9, forgetting: float = 0.05, forward: float | None = 0.0123
) -> dict:
    return {
        "benchmark": "split-digits",
        "method": "vcl",
        "seed": seed,
        "run": f"run-{seed}",
        "task_names": ["0v1", "2v3"],
        "accuracy_matrix": [[0.99, None], [0.94, 0.8667]],
        "average_accuracy": accuracy,
        "forgetting": forgetting,
        "backward_transfer": -forgetting,
        "forward_transfer": forward,
        "scores": [[SCORES], [{**SCORES, "calibration_error": c} for c in (0.0125, 0.0375)]],
        "steps": 40,
        "train_seconds": 3.2,
    }


def printed(*parts: object) -> list[list[str]]:
    """The words of each line, without the frame."""
    console = Console(width=200, no_color=True)
    with console.capture() as capture:
        for part in parts:
            console.print(part)
    return [
        [cell.strip() for cell in line.strip("│┃ ").replace("┃", "│").split("│")]
        for line in capture.get().splitlines()
    ]


def test_the_table_of_a_run_has_percentages_and_nats():
    lines = printed(tables.accuracy_table(result()))
    assert ["after task", "1: 0v1", "2: 2v3", "average"] in lines
    assert ["1", "99.00", "", "99.00"] in lines
    assert ["2", "94.00", "86.67", "90.33"] in lines
    assert ["log-likelihood", "-0.250", "-0.250", "-0.250"] in lines
    assert ["Brier score", "0.1250", "0.1250", "0.1250"] in lines
    assert ["calibration error (%)", "1.250", "3.750", "2.500"] in lines
    assert ["entropy, total (nats)", "0.500", "0.500", "0.500"] in lines
    assert ["entropy, aleatoric (nats)", "0.375", "0.375", "0.375"] in lines


def test_a_result_from_before_the_brier_score_is_shown_without_it():
    old = result()
    del old["scores"][-1][1]["brier_score"]
    titles = [line[0] for line in printed(tables.accuracy_table(old))]
    assert "Brier score" not in titles
    assert "log-likelihood" in titles


def test_a_run_in_a_sentence():
    assert printed(tables.summary(result())) == [
        [
            "Average accuracy 90.00 %, learning accuracy 92.84 %, forgetting 5.00, backward transfer -5.00, "
            "forward transfer +1.23 points; 40 steps in 3 s."
        ]
    ]


def test_forward_transfer_is_left_out_where_it_is_not_defined():
    assert printed(tables.summary(result(forward=None))) == [
        [
            "Average accuracy 90.00 %, learning accuracy 92.84 %, forgetting 5.00, backward transfer -5.00 points; "
            "40 steps in 3 s."
        ]
    ]


def test_seeds_are_summed_up_by_mean_and_sample_standard_deviation():
    results = [
        result(s, accuracy=a, forgetting=f) for s, a, f in ((0, 0.90, 0.01), (1, 0.92, 0.03), (2, 0.97, 0.05))
    ]
    results[2]["accuracy_matrix"] = [[0.99, None], [0.94, 0.9267]]
    # Over n - 1: accuracies 3.606 (over n it would be 2.944), learning 1.732 (1.414), forgetting 2.000 (1.633).
    assert printed(tables.seeds_summary(results)) == [
        [
            "Average accuracy 93.00 ± 3.61 % (mean ± standard deviation over 3 seeds), learning accuracy "
            "93.84 ± 1.73 %, forgetting 3.00 ± 2.00 points."
        ]
    ]
    lines = printed(tables.seeds_table(results))
    # The titles are folded at their words.
    assert ["average", "learning"] in lines
    assert ["seed", "(%)", "(%)", "forgetting", "transfer", "(s)", "run"] in lines
    assert ["1", "92.00", "92.84", "3.00", "-3.00", "3", "run-1"] in lines
    found = tables.over_seeds(results)
    assert found["mean"]["learning_accuracy"] == pytest.approx(0.93835)
    assert found["mean"]["forgetting"] == pytest.approx(0.03)
    assert found["standard_deviation"]["forgetting"] == pytest.approx(0.02)


def test_the_folders_of_seeds_are_named_whole_in_a_hundred_columns():
    names = [f"split-digits-vcl-2abbe2a6-seed{seed}" for seed in (0, 1)]
    console = Console(width=100, no_color=True)
    with console.capture() as captured:
        console.print(tables.seeds_table([{**result(), "run": name} for name in names]))
    assert all(name in captured.get() for name in names)


def test_a_mean_over_seeds_is_null_where_a_seed_has_no_value():
    found = tables.over_seeds([result(0), result(1, forward=None)])
    assert found["mean"]["forward_transfer"] is None
    assert found["standard_deviation"]["forward_transfer"] is None
    assert found["mean"]["average_accuracy"] == pytest.approx(0.9)


def record(seed: int, threads: int = 1, **learner: object) -> dict:
    config = {"recipe": "fast", "stream": {"num_tasks": 2}, "learner": {"epochs": 2, **learner}, "threads": threads}
    return {"benchmark": "split-digits", "method": "vcl", "seed": seed, "config": config}


def test_runs_differ_by_what_decides_their_result_not_by_seed_or_threads():
    assert tables.differences([record(0), record(1, threads=2)]) == {}
    changed = {**record(1, epochs=3, hidden=[8]), "method": "joint-vcl"}
    assert tables.differences([record(0, hidden=[8]), changed]) == {"method": ["vcl", "joint-vcl"], "epochs": [2, 3]}
    other = record(2)
    other["config"]["stream"]["num_tasks"] = 3
    assert tables.differences([record(0), other]) == {"num_tasks": [2, 3]}


def test_names_are_not_taken_for_markup():
    table = tables.comparison_table([["method", "note"], ["vcl:x=[bold]", "[red]"]], "name")
    shown = [cell for line in printed(table) for cell in line]
    assert "vcl:x=[bold]" in shown
    assert "[red]" in shown


def test_a_comparison_fits_a_hundred_columns():
    head = [
        "method",
        "accuracy (%)",
        "forgetting",
        "learning accuracy (%)",
        "calibration error",
        "training (s)",
        "note",
    ]
    line = ["progress-compress", "98.96 ± 10.23", "12.34 ± 10.23", "98.96 ± 10.23", "12.96 ± 10.23", "1234 ± 123"]
    table = tables.comparison_table([head, [*line, "3.1 × the parameters; task identity given at test time"]], "x")
    console = Console(width=100, no_color=True)
    with console.capture() as captured:
        console.print(table)
    assert any(all(cell in row for cell in line) for row in captured.get().splitlines())
