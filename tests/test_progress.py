"""What a terminal shows while runs are learnt."""

import io

import pytest
from rich.console import Console

from vcl import runs
from vcl.progress import SeveralRuns, clock, progress
from vcl.runs.sweep import RunStatus, run_status

RUNNING = RunStatus("running", stage=1, num_stages=5, epoch=10, objective=0.25, accuracies=(0.5, 1.0))


@pytest.fixture
def board() -> SeveralRuns:
    """Three seeds of 20 epochs, on a terminal."""
    configs = [runs.configure("split-digits", seed=seed, threads=1, epochs=20) for seed in range(3)]
    console = Console(file=io.StringIO(), force_terminal=True, width=120, color_system=None)
    return SeveralRuns(console, configs, quiet=False)


def rows(board: SeveralRuns) -> list[str]:
    console = Console(file=io.StringIO(), width=120, color_system=None)
    console.print(board.bars.make_tasks_table(board.bars.tasks))
    return [" ".join(line.replace("━", "").split()) for line in console.file.getvalue().splitlines()]


def test_queued_runs_have_no_clock_and_none_is_complete_at_first(board):
    first, second, third, whole = rows(board)
    assert first == "split-digits vcl seed 0 queued"
    assert third == "split-digits vcl seed 2 queued"
    assert "0 of 3 complete" in whole
    assert second.endswith("queued")


def test_running_and_complete_runs_are_counted(board):
    board.watch(0, RUNNING)
    board.watch(1, RunStatus())
    first, second, _, whole = rows(board)
    assert "task 2/5 epoch 10/20 objective 0.2500 accuracy so far 75.00 %" in first
    assert first.endswith(("0:00", "0:01"))
    assert second == "split-digits vcl seed 1 queued"
    assert "0 of 3 complete" in whole
    assert board.bars.tasks[-1].completed == pytest.approx((1 + 10 / 20) / 5)
    board.watch(0, RunStatus("complete", accuracies=(0.9,)))
    board.watch(1, RunStatus("failed", stage=1, num_stages=5))
    first, second, _, whole = rows(board)
    assert "complete accuracy so far 90.00 %" in first
    assert "failed" in second
    assert "1 of 3 complete" in whole


def test_with_many_runs_only_those_running_have_a_row():
    configs = [runs.configure("split-digits", seed=seed, threads=1, epochs=20) for seed in range(9)]
    board = SeveralRuns(Console(file=io.StringIO()), configs, quiet=True)
    assert len(rows(board)) == 1
    board.watch(3, RUNNING)
    assert [row.split()[3] for row in rows(board)[:-1]] == ["3"]


def test_lines_where_there_is_no_terminal_leave_out_what_is_queued():
    configs = [runs.configure("split-digits", seed=seed, threads=1) for seed in range(2)]
    console = Console(file=io.StringIO(), width=200)
    with SeveralRuns(console, configs, quiet=False) as board:
        board.last_line = [0.0, 0.0]
        board.watch(0, RunStatus())
        board.watch(1, RunStatus("running"))
    assert console.file.getvalue() == "split-digits vcl seed 1:   0 %  starting\n"


def test_what_is_said_of_a_run():
    assert progress(RunStatus("running"), 20) == (0.0, "starting")
    assert progress(RunStatus(), 20) == (0.0, "queued")
    batch = RunStatus("running", stage=2, num_stages=4, unit="batch", epoch=1, objective=1.0)
    assert progress(batch, 2) == (2.5 / 4, "batch 3/4  epoch 1/2  objective 1.0000")


def test_a_folder_that_is_not_there_is_a_run_that_is_queued(tmp_path):
    assert run_status(tmp_path / "missing") == RunStatus()


def test_clocks_have_hours_where_there_are_some():
    assert [clock(s) for s in (0.4, 65.0, 3600.0)] == ["0:00", "1:05", "1:00:00"]
