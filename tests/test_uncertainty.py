"""Calibration, selective prediction and out-of-distribution detection of stored runs."""

import json

import numpy as np
import pytest

from vcl import cli, runs
from vcl.analysis.uncertainty import averaged, flat, noise, outsiders, uncertainty
from vcl.errors import VclError
from vcl.runs import StoredRun


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    stream = runs.StreamOptions(num_tasks=2)
    config = runs.configure("split-digits", "vcl", threads=1, stream=stream, hidden=(20,), epochs=20)
    runs.run(config, root)
    return StoredRun.open(root / config.name)


def test_the_report_agrees_with_the_result(stored):
    report = uncertainty(stored)
    scores = stored.result["scores"][-1]
    assert report.accuracy == pytest.approx(stored.result["average_accuracy"])
    assert report.calibration_error == pytest.approx(np.mean([s["calibration_error"] for s in scores]), abs=1e-6)
    assert report.brier_score == pytest.approx(np.mean([s["brier_score"] for s in scores]), abs=1e-6)
    assert report.risk[0.8] <= report.risk[0.95] + 1e-9
    assert report.outside["noise"].total > 0.5
    assert int(report.reliability.counts.sum()) == sum(len(stored.stream().test(t).labels) for t in range(2))


def test_inputs_from_outside_are_not_the_task_s_own(stored):
    stream = stored.stream()
    found = outsiders(stored, stream, None)
    assert set(found) == {"noise", "unseen"}
    own = {row.tobytes() for row in stream.test(0).inputs}
    assert not own & {row.tobytes() for row in found["unseen"][0]}
    drawn = noise(stream, 0, 0)
    assert drawn.dtype == stream.test(0).inputs.dtype
    assert np.array_equal(drawn, noise(stream, 0, 0))
    assert not np.array_equal(drawn, noise(stream, 0, 1)[: len(drawn)])


def test_the_command_averages_over_runs(stored, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["vcl", "uncertainty", str(stored.path), str(stored.path), "--json"])
    cli.main()
    found = json.loads(capsys.readouterr().out)["vcl"]
    assert found["runs"] == 2
    assert found["accuracy"]["standard_deviation"] == 0.0
    assert found["auroc_noise_total"]["mean"] == pytest.approx(flat(uncertainty(stored))["auroc_noise_total"])
    with pytest.raises(VclError, match="no runs"):
        averaged([])
