"""Calibration, selective prediction and out-of-distribution detection of stored runs."""

import json

import numpy as np
import pytest

from vcl import cli, runs
from vcl.analysis import uncertainty as measures
from vcl.analysis.uncertainty import (
    averaged,
    entropies,
    flat,
    noise,
    outsiders,
    pooled,
    some_of,
    trust,
    uncertainty,
    unseen_classes,
)
from vcl.errors import VclError
from vcl.evaluation import Prediction, auroc, reliability
from vcl.runs import StoredRun


@pytest.fixture(scope="module")
def seeds(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    stream = runs.StreamOptions(num_tasks=2)
    configs = [
        runs.configure("split-digits", "vcl", seed=seed, threads=1, stream=stream, hidden=(20,), epochs=20)
        for seed in range(2)
    ]
    for config in configs:
        runs.run(config, root)
    return [StoredRun.open(root / config.name) for config in configs]


@pytest.fixture(scope="module")
def stored(seeds):
    return seeds[0]


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
    found = outsiders(stored, stream, None, None)
    assert set(found) == {"noise", "other_tasks"}
    own = {row.tobytes() for row in stream.test(0).inputs}
    assert not own & {row.tobytes() for row in found["other_tasks"][0]}
    drawn = noise(stream, 0, 0)
    assert drawn.dtype == stream.test(0).inputs.dtype
    assert np.array_equal(drawn, noise(stream, 0, 0))
    assert not np.array_equal(drawn, noise(stream, 0, 1)[: len(drawn)])


def test_classes_are_unseen_where_a_later_task_brings_them(stored):
    """After the first of two tasks, by its own head, against all inputs of the second."""
    stream = stored.stream()
    inputs = stream.test(0).inputs, some_of(stream, [1], seed=0)
    after_first, after_both = (
        auroc(*(stored.predict(x, task=1, stage=stage).total_entropy for x in inputs)) for stage in (1, 2)
    )
    found = unseen_classes(stored, stream)["unseen"]
    assert found.total == pytest.approx(after_first)
    assert found.total != pytest.approx(after_both, abs=1e-4)


def test_a_report_shows_the_same_detection(stored):
    found, report = trust(stored), uncertainty(stored)
    assert found.absent is None
    assert found.outside.keys() == {"noise", "other_tasks", "unseen"}
    for kind, detection in report.outside.items():
        assert found.outside[kind] == pytest.approx(detection)
    assert [right.mean() for _, right in found.answers] == pytest.approx(stored.result["accuracy_matrix"][-1])


def test_a_report_fetches_no_other_data_set(stored, monkeypatch):
    """The digits stand for a data set of other things, which is on this machine or not."""
    monkeypatch.setitem(measures.OTHER, "split-digits", "permuted-digits")
    monkeypatch.setattr(measures, "is_here", lambda name, data_dir: name != "digits")
    built = []
    build = measures.build
    monkeypatch.setattr(measures, "build", lambda name, *rest: built.append(name) or build(name, *rest))
    found = trust(stored)
    assert (found.absent, found.outside.keys(), built) == ("digits", {"noise", "other_tasks", "unseen"}, [])
    monkeypatch.setattr(measures, "is_here", lambda name, data_dir: name == "digits")
    found = trust(stored)
    assert (found.absent, found.outside.keys()) == (None, {"noise", "digits", "other_tasks", "unseen"})
    assert built == ["permuted-digits"]


def test_the_command_averages_over_seeds_and_draws_them(seeds, tmp_path, monkeypatch, capsys):
    picture = tmp_path / "trust.svg"
    paths = [str(run.path) for run in seeds]
    monkeypatch.setattr("sys.argv", ["vcl", "uncertainty", *paths, "--json", "--figure", str(picture)])
    cli.main()
    found = json.loads(capsys.readouterr().out)["vcl"]
    reports = [uncertainty(run) for run in seeds]
    assert found["runs"] == 2
    values = [flat(report)["auroc_noise_total"] for report in reports]
    assert found["auroc_noise_total"]["values"] == pytest.approx(values)
    assert found["auroc_noise_total"]["mean"] == pytest.approx(np.mean(values))
    assert found["auroc_noise_total"]["standard_deviation"] == pytest.approx(np.std(values, ddof=1))
    # Everything is answered at a coverage of one; the diagram counts every example of both runs.
    assert found["risk_coverage"]["risk"][-1] == pytest.approx(1 - found["accuracy"]["mean"])
    assert sum(found["reliability"]["counts"]) == sum(int(r.reliability.counts.sum()) for r in reports)
    assert b"confidence" in picture.read_bytes()
    with pytest.raises(VclError, match="no runs"):
        averaged([])


def test_one_diagram_of_several_runs_is_that_of_all_their_examples():
    rng = np.random.default_rng(0)
    probabilities, labels = rng.dirichlet(np.ones(3), 90), rng.integers(3, size=90)
    parts = [reliability(probabilities[rows], labels[rows]) for rows in (slice(0, 30), slice(30, 90))]
    found = pooled(parts)
    for ours, whole in zip(found, reliability(probabilities, labels), strict=True):
        np.testing.assert_allclose(ours, whole)


def test_a_point_estimate_does_not_tell_inputs_apart_by_what_it_does_not_know():
    """Its epistemic entropy is zero but for rounding, of which no detection may be made."""
    inside, outside = (
        Prediction(np.zeros((5, 2)), np.full(5, 0.5), 0.5 - 1e-8 * np.arange(5) - shift) for shift in (0.0, 1e-7)
    )
    assert auroc(*entropies(inside, outside)[1]) == 0.5
