"""The report: what it says, what travels inside it, and what it must never let through."""

import base64
import csv
import gzip
import json
import re
import shutil
import sys
from dataclasses import asdict, replace
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path

import jax
import numpy as np
import pytest
import small_runs
from jax import numpy as jnp
from scipy import stats

from vcl import cli
from vcl.analysis import Analysis, Layer, exciting_patterns, forward_use
from vcl.analysis.uncertainty import Detection
from vcl.analysis.units import Probe
from vcl.cli import inspect
from vcl.core import StreamSpec
from vcl.errors import VclError
from vcl.nets import MLP, zeros
from vcl.posteriors.mean_field import Gaussian, isotropic
from vcl.report.images import Tile, mosaic
from vcl.report.labels import labels
from vcl.report.page.charts import line_chart, nice_ticks
from vcl.report.page.explorer import MEASURES, explorer_data, packed_means, packed_variances, rounded
from vcl.report.page.html import BLUE, MOST_OPAQUE, ORANGE, Reported, embedded, names_of, render
from vcl.report.page.trust import Answers
from vcl.runs import StoredRun
from vcl.runs.folder import RunFolder

HOSTILE = "</script><script>alert(1)</script><!-- & '\"><img src=x onerror=alert(2)>"

STYLE = (files("vcl.report.page") / "report.css").read_text()


@pytest.fixture(scope="module")
def split_folder(tmp_path_factory) -> Path:
    return small_runs.split(tmp_path_factory.mktemp("split")).path


@pytest.fixture(scope="module")
def split(split_folder) -> Reported:
    return small_runs.reported(RunFolder.open(split_folder))


@pytest.fixture(scope="module")
def permuted(tmp_path_factory) -> Reported:
    return small_runs.reported(small_runs.permuted(tmp_path_factory.mktemp("permuted")))


def made_up(input_shape: tuple[int, ...], hidden: tuple[int, ...] = (6,), num_tasks: int = 2) -> Reported:
    """A run on inputs of any shape, with weights and measures out of the air: no data, no training."""
    rng = np.random.default_rng(0)
    spec = StreamSpec(input_shape, "uint8", 2, tuple(range(num_tasks)), capacity=20)
    prior = isotropic(zeros(MLP(hidden), spec), 0.0, 1.0)

    def posterior() -> Gaussian:
        def noise(leaf: jax.Array) -> jax.Array:
            return jnp.asarray(rng.normal(0, 0.3, leaf.shape), leaf.dtype)

        return Gaussian(jax.tree.map(noise, prior.mean), jax.tree.map(lambda v: v - 3 + noise(v), prior.log_var))

    def layer(width: int) -> Layer:
        active = np.arange(width) < width // 2 + np.arange(num_tasks)[:, None]
        return Layer(*(rng.uniform(0, 1, active.shape) for _ in range(4)), active)

    analysis = Analysis(
        prior,
        tuple(posterior() for _ in range(num_tasks)),
        spec.heads,
        tuple(map(layer, hidden)),
        np.zeros(num_tasks),
        tuple(Probe(head, rng.integers(0, 256, (10, spec.input_size)).astype(np.uint8)) for head in spec.heads),
    )
    names = [f"{2 * task}v{2 * task + 1}" for task in range(num_tasks)]
    config = {"recipe": "fast", "stream": {}, "learner": {"hidden": list(hidden)}, "threads": 1}
    record = {
        "benchmark": "split-cifar10",
        "method": "vcl",
        "seed": 0,
        "config": config,
        "version": "0",
        "versions": {},
        "command": "vcl run",
        "created": "today",
        "spec": json.loads(json.dumps(asdict(spec))),
        "task_names": names,
        "stages": list(range(num_tasks)),
    }
    score = {
        "accuracy": 0.75,
        "log_likelihood": -0.5,
        "calibration_error": 0.1,
        "total_entropy": 0.3,
        "aleatoric_entropy": 0.2,
    }
    result = {
        **{key: record[key] for key in ("benchmark", "method", "seed", "config", "version", "task_names")},
        "accuracy_matrix": [[0.75 if t <= after else None for t in range(num_tasks)] for after in range(num_tasks)],
        "average_accuracy": 0.75,
        "forgetting": 0.0,
        "backward_transfer": 0.0,
        "forward_transfer": None,
        "scores": [[score] * num_tasks] * num_tasks,
        "steps": 10,
        "train_seconds": 1.0,
        "run": "a-folder",
    }
    return Reported(record, result, analysis)


class Page(HTMLParser):
    """What a browser would see: tags with their attributes, text, and the contents of scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())

    def units(self, number: int = 1) -> dict:
        """The data of an explorer, as its script reads it."""
        found = [text for text in self.texts if text.startswith('{"tasks"')]
        return json.loads(found[number - 1])


def unpacked(packed: dict, tasks: int, units: int) -> np.ndarray:
    raw = gzip.decompress(base64.b64decode(packed["bytes"]))
    return np.frombuffer(raw, np.uint8).reshape(tasks, units, packed["size"]).astype(float)


# What is said


def test_a_page_says_what_the_run_found(split):
    page = Page(render([split]))
    result = split.result
    assert f"{100 * result['average_accuracy']:.2f} %" in page.text
    for row in result["accuracy_matrix"]:
        for accuracy in row:
            assert accuracy is None or f"{100 * accuracy:.2f}" in page.texts
    for score in result["scores"][-1]:
        assert f"{score['brier_score']:.4f}" in page.texts
        assert f"{100 * score['calibration_error']:.2f}" in page.texts
        assert f"{score['total_entropy'] - score['aleatoric_entropy']:.3f}" in page.texts
    assert split.record["command"] in page.texts
    for name, value in split.record["config"]["learner"].items():
        assert f"{name} = {value}" in page.text
    use = forward_use(split.inside)
    assert f"{use[0, 2]:.3f}" in page.texts
    counts = split.inside.counts[0]
    first = split.inside.layers[0].first_active
    rows = re.sub(r"<.*?>", " ", render([split]).split("Unit by unit")[0]).split("layer 1:")
    assert rows[1].split()[:5] == ["active,", "of", "12", *map(str, counts[:2])]
    assert rows[2].split()[5:8] == [str(np.sum(first == task)) for task in (1, 2, 3)]


def test_several_runs_are_compared_and_each_has_its_explorer(split, permuted):
    page = Page(render([split, permuted]))
    assert "2 runs of split-digits, permuted-digits" in page.texts
    assert " + ".join(map(str, permuted.inside.counts[:, -1])) in page.texts
    explorers = [attributes for tag, attributes in page.tags if attributes.get("class") == "explorer"]
    assert [e["data-units"] for e in explorers] == ["units-1", "units-2"]
    assert page.units(1)["tasks"] == ["0v1", "2v3", "4v5"]
    assert len(page.units(2)["layers"]) == 2
    links = [attributes["href"] for tag, attributes in page.tags if tag == "a" and "download" not in attributes]
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert [link[1:] for link in links] == [i for i in ids if i.startswith("run-")]
    assert len(ids) == len(set(ids))
    titles = [text for text in page.texts if text.startswith("Active units in layer")]
    assert titles == ["Active units in layer 1", "Active units in layer 2"]
    # In the links, in the table, as a heading, and in the legends of accuracy and of each layer.
    assert page.texts.count("split-digits, vcl") == 3 + 2
    assert page.texts.count("permuted-digits, vcl") == 3 + 3


def with_accuracy(accuracy: float, seed: int = 0, method: str = "vcl", **config) -> Reported:
    """A run of two tasks whose scores follow from its accuracy; of its learning accuracy 0.1 is forgotten."""
    run = made_up((28, 28))
    score = {
        **run.result["scores"][-1][0],
        "brier_score": 1 - accuracy,
        "calibration_error": (1 - accuracy) / 10,
        "log_likelihood": accuracy - 1,
    }
    result = {
        **run.result,
        "method": method,
        "seed": seed,
        "config": {**run.result["config"], **config},
        "accuracy_matrix": [[accuracy + 0.2, None], [accuracy, accuracy]],
        "average_accuracy": accuracy,
        "scores": [[score] * 2] * 2,
    }
    return replace(run, result=result, inside="Not of interest.")


def paired_rows(page: Page) -> list[list[str]]:
    """The table of paired differences, without the quotes that keep spreadsheets from reading them as formulas."""
    return [[cell.removeprefix("'") for cell in row] for row in saved(page)["paired-differences.csv"]]


def test_learning_accuracy_stands_beside_the_average():
    page = Page(render([with_accuracy(0.6)]))
    assert "60.00 % average accuracy after the last task; learning accuracy" in page.text
    assert "just after it was learnt, 70.00 %. Forgetting 0.00, backward" in page.text


def test_configurations_on_the_same_seeds_are_compared_by_paired_differences():
    # A seed that only one of them has counts for its own mean and standard deviation only.
    ours = [with_accuracy(a, seed) for seed, a in enumerate((0.7, 0.85, 0.8, 0.75))]
    theirs = [with_accuracy(a, seed, "laplace") for seed, a in ((2, 0.85), (1, 0.9), (0, 0.8))]
    single = with_accuracy(0.99, method="ewc")
    head, *rows = paired_rows(Page(render([*ours, *theirs, single])))
    assert head == [
        "configuration",
        "seeds",
        "accuracy",
        "calibration error",
        "Brier score",
        "negative log-likelihood",
    ]
    # Gaps of -0.1, -0.05 and -0.05: the interval is that of SciPy's paired t-test.
    low, high = (100 * bound for bound in stats.ttest_rel((0.7, 0.85, 0.8), (0.8, 0.9, 0.85)).confidence_interval())
    assert rows[0][:3] == ["laplace: mean ± standard deviation", "3", "85.00 ± 5.00"]
    assert rows[1][:3] == ["vcl: difference", "3", f"-6.67 ({low:+.2f} … {high:+.2f})"]
    assert rows[1][3:] == ["+0.67 (-0.05 … +1.38)", "+0.0667 (-0.0050 … +0.1384)", "+0.067 (-0.005 … +0.138)"]
    assert len(rows) == 2


def test_runs_without_a_pair_of_seeds_have_no_paired_differences():
    other = {"stream": {"num_tasks": 7}}
    seeds = [with_accuracy(0.8), with_accuracy(0.9, 1)]
    # One configuration; another one with one seed; another stream.
    for more in ([], [with_accuracy(0.7, method="ewc")], [with_accuracy(0.7, s, "ewc", **other) for s in (0, 1)]):
        assert "Paired differences over seeds" not in Page(render([*seeds, *more])).texts


def test_measures_that_old_results_lack_stay_empty_in_paired_differences():
    def old(run: Reported) -> Reported:
        scores = [
            {name: v for name, v in score.items() if name != "brier_score"} for score in run.result["scores"][-1]
        ]
        return replace(run, result={**run.result, "scores": [scores, scores]})

    ours = [with_accuracy(0.8), with_accuracy(0.9, 1)]
    theirs = [old(with_accuracy(a, seed, "ewc")) for seed, a in ((0, 0.7), (1, 0.6))]
    page = Page(render([*ours, *theirs]))
    _, best, other = paired_rows(page)
    assert (best[4], other[4]) == ("0.1500 ± 0.0707", "")
    assert other[2].startswith("-20.00 (")
    # In the sections of these runs there is no row for it either.
    assert page.texts.count("Brier score") == 1 + len(ours)


def test_intransigence_is_measured_against_joint_training_on_the_same_stream_and_seed():
    ours = [with_accuracy(0.6), with_accuracy(0.5, 1)]
    joint = [
        with_accuracy(0.9, 0, "joint", stream={"num_tasks": 7}),
        with_accuracy(0.75, 0, "joint"),
        with_accuracy(0.85, 2, "joint"),
    ]
    page = Page(render([*ours, *joint]))
    head, *rows = saved(page)["comparison-of-the-runs.csv"]
    place = head.index("intransigence")
    assert [row[place] for row in rows] == ["15.00", "", "0.00", "0.00", "0.00"]
    assert [row[head.index("learning accuracy (%)")] for row in rows] == [
        "70.00",
        "60.00",
        "100.00",
        "85.00",
        "95.00",
    ]
    assert "Intransigence" in page.text
    alone = Page(render(ours))
    assert "ntransigence" not in alone.text


def saved(page: Page) -> dict[str, list[list[str]]]:
    """The tables that a page offers as files."""
    links = [attributes for tag, attributes in page.tags if tag == "a" and "download" in attributes]
    texts = {a["download"]: base64.b64decode(a["href"].partition("base64,")[2]).decode() for a in links}
    return {name: list(csv.reader(text.splitlines())) for name, text in texts.items()}


def test_every_table_can_be_saved(split):
    page = Page(render([split]))
    tables = saved(page)
    assert len(tables) == sum(tag == "table" for tag, _ in page.tags)
    matrix = tables["accuracy-matrix.csv"]
    assert matrix[0] == ["after task", "1: 0v1", "2: 2v3", "3: 4v5", "average"]
    assert matrix[3][1:4] == [f"{100 * accuracy:.2f}" for accuracy in split.result["accuracy_matrix"][2]]


def test_losses_reliability_and_risk_are_those_of_the_run(split, split_folder):
    run = StoredRun.open(split_folder)
    losses, (answers, outside, absent) = inspect.losses(run), inspect.trust(run, None)
    assert [(stage, len(values)) for stage, _, values in losses] == [(0, 40), (1, 40), (2, 40)]
    for one, accuracy in zip(answers, split.result["accuracy_matrix"][-1], strict=True):
        assert one.correct.mean() == pytest.approx(accuracy)
    page = Page(render([replace(split, losses=losses, answers=answers, outside=outside, absent=absent)]))
    tables = saved(page)
    assert len(tables["objective.csv"]) == 1 + 120
    assert tables["inputs-from-outside.csv"] == [
        ["AUROC", "total entropy", "epistemic entropy"],
        *(
            [name, f"{outside[kind].total:.3f}", f"{outside[kind].epistemic:.3f}"]
            for name, kind in (
                ("uniform noise", "noise"),
                ("classes of the other tasks", "other_tasks"),
                ("classes not yet seen", "unseen"),
            )
        ),
    ]
    assert "left out" not in page.text
    whole = [row for row in tables["risk-coverage.csv"][1:] if row[0] == "all tasks"]
    wrong = 1 - np.concatenate([one.correct for one in answers]).mean()
    assert (float(whole[-1][1]), float(whole[-1][2])) == pytest.approx((1.0, wrong))


def test_a_data_set_that_is_not_on_this_machine_is_left_out_with_a_sentence():
    answers = [Answers("", np.array([0.9, 0.6]), np.array([True, False]))] * 2
    run = replace(
        made_up((28, 28)), answers=answers, outside={"unseen": Detection(0.75, 0.5)}, absent="fashion-mnist"
    )
    run = replace(run, record={**run.record, "benchmark": "permuted-mnist"})
    page = Page(render([run]))
    assert saved(page)["inputs-from-outside.csv"][1:] == [["a further permutation", "0.750", "0.500"]]
    assert "Images of fashion-mnist are left out" in page.text
    assert "vcl data fetch fashion-mnist" in page.texts
    assert "Inputs from outside" not in Page(render([replace(run, answers=())])).texts


def test_garments_are_called_by_their_names():
    run = made_up((28, 28))
    run = replace(run, record={**run.record, "benchmark": "split-fashion"})
    page = Page(render([run]))
    assert "2: pullover v dress" in page.texts
    assert page.units()["classes"] == [["T-shirt", "trousers"], ["pullover", "dress"]]


def changed(run: Reported, seed: int = 0, **settings) -> Reported:
    config = {**run.result["config"], "learner": {**run.result["config"]["learner"], **settings}}
    return replace(run, result={**run.result, "seed": seed, "config": config})


def test_runs_are_told_apart_by_what_differs_and_never_by_a_hash(split):
    assert names_of([split]) == ["split-digits, vcl, seed 0"]
    assert names_of([split, changed(split, seed=1)]) == ["vcl, seed 0", "vcl, seed 1"]
    runs = [split, changed(split, coreset=7), changed(split, seed=1, epochs=9)]
    names = names_of(runs)
    assert names == [
        "vcl, epochs=40, no coreset, seed 0",
        "vcl, epochs=40, coreset=7, seed 0",
        "vcl, epochs=9, no coreset, seed 1",
    ]
    parts = re.split("<h3>How it was made</h3>.*?</details>", render(runs), flags=re.DOTALL)
    assert all(name in parts[0] for name in names)
    assert not any(split.result["run"] in part for part in parts)


def asked(method="vcl", recipe="fast", benchmark="split-mnist", seed=0, stream=None, threads=1, **settings) -> dict:
    config = {"recipe": recipe, "stream": stream or {}, "learner": settings, "threads": threads}
    return {"benchmark": benchmark, "method": method, "seed": seed, "config": config}


def test_labels_tell_what_differs_and_no_more():
    assert labels([asked(coreset=0, rate=1), asked(coreset=200, rate=1)]) == ["vcl, no coreset", "vcl, coreset=200"]
    # Recipes differ in many settings: their names say it all, but for the coreset.
    mixed = [asked(coreset=0, rate=1), asked(recipe="paper", coreset=0, rate=2), asked("ewc", rate=3)]
    assert labels(mixed) == ["vcl, fast", "vcl, paper", "ewc"]
    assert labels([asked(coreset=0, rate=1), asked(recipe="paper", coreset=40, rate=2)]) == [
        "vcl, fast, no coreset",
        "vcl, paper, coreset=40",
    ]
    # So do benchmarks.
    other = asked(benchmark="permuted-mnist", rate=9)
    assert labels([asked(rate=1), other]) == ["split-mnist, vcl", "permuted-mnist, vcl"]
    assert labels([asked(hidden=[5]), asked(hidden=[5, 4], threads=2)]) == [
        "vcl, hidden=5, threads=1",
        "vcl, hidden=5×4, threads=2",
    ]
    assert labels([asked(stream={"num_tasks": None}), asked(stream={"num_tasks": 3})]) == [
        "vcl, default num_tasks",
        "vcl, num_tasks=3",
    ]


def test_labels_name_seeds_unless_they_are_averaged_over():
    seeds = [asked(seed=0, rate=1), asked(seed=1, rate=2)]
    assert labels(seeds) == ["vcl, rate=1, seed 0", "vcl, rate=2, seed 1"]
    assert labels(seeds, over_seeds=True) == ["vcl, rate=1", "vcl, rate=2"]
    assert labels([asked()], always=("benchmark", "method", "recipe", "seed")) == ["split-mnist, vcl, fast, seed 0"]


def test_copies_of_one_run_are_numbered():
    assert labels([asked(), asked("ewc"), asked()]) == ["vcl (1)", "ewc", "vcl (2)"]


def test_forward_transfer_may_be_missing(split):
    def said(forward: float | None) -> str:
        run = replace(split, result={**split.result, "forward_transfer": forward})
        return re.sub(r"<script.*?</script>|<[^>]*>", " ", render([run, changed(run, seed=1)]), flags=re.DOTALL)

    assert "forward transfer +12.50 percentage points" in " ".join(said(0.125).split())
    without = said(None)
    assert "None" not in without.split("How it was made")[0]
    assert without.count("forward transfer") == 1  # the table's heading
    assert "–" in without


def test_a_run_whose_units_cannot_be_shown_has_all_the_rest(split):
    page = Page(render([replace(split, inside="Its data <could> not be had.")]))
    assert "Its data <could> not be had." in page.text
    assert not any(attributes.get("class") == "explorer" for _, attributes in page.tags)
    assert "Accuracy gained or lost since a task was learnt" in page.texts
    assert "Forward: use of earlier tasks' units" not in page.texts
    assert split.record["command"] in page.texts


# What travels along


def test_the_numbers_of_every_unit_travel_along(split, permuted):
    for run in (split, permuted):
        analysis = run.inside
        data = Page(render([run])).units()
        for sent, layer in zip(data["layers"], analysis.layers, strict=True):
            assert sent["first_active"] == layer.first_active.tolist()
            assert sent["active"] == layer.active.tolist()
            for name in ("information", "information_gain", "signal_to_noise", "removal_effect"):
                np.testing.assert_allclose(sent[name], getattr(layer, MEASURES[name]), rtol=1e-5)
        for number, (sent, q) in enumerate(zip(data["output"], analysis.posteriors, strict=True)):
            assert sent["heads"] == sorted(set(analysis.heads[: number + 1]))
            np.testing.assert_allclose(sent["mean"], q.mean.head.weight[: len(sent["heads"])], rtol=1e-5)
            np.testing.assert_allclose(
                sent["sd"], np.exp(0.5 * q.log_var.head.weight[: len(sent["heads"])]), rtol=1e-5
            )


def test_the_images_of_every_unit_travel_along(split, permuted):
    for run in (split, permuted):
        analysis = run.inside
        for number, sent in enumerate(explorer_data(run.record, analysis)["layers"]):
            shape = analysis.layers[number].active.shape
            for after, q in enumerate(analysis.posteriors):
                mean, log_var = q.mean.body[number].weight.T, q.log_var.body[number].weight.T
                means = (unpacked(sent["mean"], *shape)[after] - 128) / 127 * sent["mean"]["scale"]
                np.testing.assert_allclose(means, mean, atol=0.51 * sent["mean"]["scale"] / 127)
                low, high = sent["variance"]["low"], sent["variance"]["high"]
                log_vars = low + (unpacked(sent["variance"], *shape)[after] - 1) / 254 * (high - low)
                np.testing.assert_allclose(log_vars, log_var, atol=0.51 * (high - low) / 254)
            assert ("pattern" in sent) == (number > 0)


def test_deep_units_are_shown_by_what_excites_them_on_their_own_task(permuted):
    analysis = permuted.inside
    sent = explorer_data(permuted.record, analysis)["layers"][1]["pattern"]
    first = analysis.layers[1].first_active
    shown = (unpacked(sent, 2, 16) - 128) / 127 * sent["scale"]
    assert sent["columns"] == 8
    for unit, task in enumerate(first):
        inputs = analysis.probes[max(task, 1) - 1].inputs
        expected = exciting_patterns(analysis.posteriors[-1], 1, inputs)[unit]
        np.testing.assert_allclose(shown[-1, unit], expected, atol=0.51 * sent["scale"] / 127)


def test_a_weight_that_is_not_there_has_variance_zero(split):
    q = split.inside.posteriors[-1]
    gone = q.log_var.body[0].weight.at[:, 3].set(-jnp.inf)
    body = (replace_weight(q.log_var.body[0], gone),)
    cut = Gaussian(q.mean, q.log_var.with_layers([*body, q.log_var.head]))
    analysis = replace(split.inside, posteriors=(*split.inside.posteriors[:-1], cut))
    sent = explorer_data(split.record, analysis)["layers"][0]["variance"]
    levels = unpacked(sent, 3, 12)
    assert (levels[-1, 3] == 0).all()
    assert np.isfinite([sent["low"], sent["high"]]).all()
    assert levels[-1, 4].min() > 0


def replace_weight(layer, weight):
    return type(layer)(weight, layer.bias)


def test_packing_keeps_signs_and_survives_constants():
    values = np.array([[[-2.0, 0.0, 1.0]]])
    packed = packed_means(values, Tile.of((3,)))
    assert packed["scale"] == 2
    assert unpacked(packed, 1, 1).tolist() == [[[1, 128, 192]]]
    two = Tile.of((2,))
    assert unpacked(packed_means(np.zeros((1, 1, 2)), two), 1, 1).tolist() == [[[128, 128]]]
    assert unpacked(packed_variances(np.full((1, 1, 2), -3.0), two), 1, 1).tolist() == [[[1, 1]]]
    assert unpacked(packed_variances(np.full((1, 1, 2), -np.inf), two), 1, 1).tolist() == [[[0, 0]]]
    assert unpacked(packed_variances(np.full((1, 1, 3), -np.inf), Tile.of((3, 1, 1))), 1, 1).tolist() == [[[0]]]


def test_numbers_are_rounded_and_what_is_no_number_is_null():
    assert rounded(np.array([[1.23456789, np.nan], [np.inf, -2e-9]])) == [[1.23457, None], [None, -2e-9]]


# Weights as images


@pytest.mark.parametrize(
    ("shape", "channels", "rows", "columns"),
    [
        ((28, 28), 1, 28, 28),
        ((5, 9), 1, 5, 9),
        ((3, 32, 32), 3, 32, 32),
        ((2, 4, 5), 2, 4, 5),
        ((100,), 1, 10, 10),
        ((54,), 1, 7, 8),
        ((6,), 1, 2, 3),
        ((1,), 1, 1, 1),
    ],
)
def test_images_keep_their_shape_and_the_rest_is_nearly_square(shape, channels, rows, columns):
    tile = Tile.of(shape)
    assert (tile.channels, tile.rows, tile.columns, tile.size) == (channels, rows, columns, np.prod(shape))
    assert tile.is_colour == (channels == 3)


def test_weights_become_images_of_the_inputs_shape():
    rng = np.random.default_rng(0)
    grey, colour, features = (rng.normal(size=(2, n)) for n in (12, 24, 5))
    np.testing.assert_array_equal(Tile.of((3, 4)).scalars(grey)[1], grey[1].reshape(3, 4))
    planes = colour[1].reshape(3, 2, 4)
    np.testing.assert_allclose(Tile.of((3, 2, 4)).scalars(colour)[1], (planes[0] + planes[1] + planes[2]) / 3)
    strip = Tile.of((5,)).scalars(features)[0]
    np.testing.assert_array_equal(strip.ravel()[:5], features[0])
    assert strip.shape == (2, 3)
    assert np.isnan(strip[1, 2])


def test_colours_are_symmetric_around_grey():
    weights = np.zeros((1, 3 * 2 * 2))
    # Red at the top left, no green at the bottom right, and a blue beyond the end of the scale.
    weights[0, 0], weights[0, 4 + 3], weights[0, 8 + 1] = 1.0, -2.0, 5.0
    image = Tile.of((3, 2, 2)).colours(weights, 2.0)[0]
    np.testing.assert_allclose(image[0, 0], [0.75, 0.5, 0.5])
    np.testing.assert_allclose(image[1, 1], [0.5, 0.0, 0.5])
    np.testing.assert_allclose(image[0, 1], [0.5, 0.5, 1.0])
    np.testing.assert_allclose(image[1, 0], 0.5)


def test_a_mosaic_has_nothing_between_its_tiles():
    tiles = np.arange(12.0).reshape(3, 2, 2)
    image = mosaic(tiles, columns=2, gap=1)
    assert image.shape == (5, 5)
    np.testing.assert_array_equal(image[:2, 3:], tiles[1])
    np.testing.assert_array_equal(image[3:, :2], tiles[2])
    assert np.isnan(image[2]).all()
    assert np.isnan(image[3:, 2:]).all()
    assert mosaic(np.zeros((3, 2, 2, 3)), 2, 1).shape == (5, 5, 3)


def test_units_of_colour_images_travel_in_colour():
    run = made_up((3, 32, 32), hidden=(6, 4))
    first, second = explorer_data(run.record, run.inside)["layers"]
    assert [(first["mean"][k], first["variance"][k]) for k in ("columns", "channels", "size")] == [
        (32, 32),
        (3, 1),
        (3 * 32 * 32, 32 * 32),
    ]
    q = run.inside.posteriors[1]
    means = (unpacked(first["mean"], 2, 6)[1] - 128) / 127 * first["mean"]["scale"]
    np.testing.assert_allclose(means, q.mean.body[0].weight.T, atol=0.51 * first["mean"]["scale"] / 127)
    low, high = first["variance"]["low"], first["variance"]["high"]
    log_vars = low + (unpacked(first["variance"], 2, 6)[1] - 1) / 254 * (high - low)
    averaged = np.exp(np.asarray(q.log_var.body[0].weight)).reshape(3, 32 * 32, 6).mean(axis=0).T
    np.testing.assert_allclose(log_vars, np.log(averaged), atol=0.51 * (high - low) / 254)
    assert (second["pattern"]["columns"], second["pattern"]["channels"]) == (32, 3)
    assert (second["mean"]["columns"], second["mean"]["channels"], second["mean"]["size"]) == (3, 1, 6)


@pytest.mark.parametrize("shape", [(3, 32, 32), (54,), (2, 4, 5), (1,)])
def test_inputs_of_any_shape_are_reported(shape):
    run = made_up(shape, hidden=(6, 4))
    page = Page(render([run]))
    for sent in page.units()["layers"][0]["mean"], page.units()["layers"][1]["pattern"]:
        assert sent["size"] == (np.prod(shape) if shape[0] != 2 else 20)
        assert sent["channels"] == (3 if shape[0] == 3 else 1)


# The command


@pytest.fixture
def report_command(monkeypatch, capsys):
    """`vcl report`: exit code, and what is said on standard error."""
    monkeypatch.setenv("NPROC", "1")  # the command sets it: this restores it

    def call(*arguments: object) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["vcl", "report", *map(str, arguments)])
        capsys.readouterr()
        try:
            cli.main()
        except SystemExit as ending:
            return int(ending.code or 0), capsys.readouterr().err
        return 0, capsys.readouterr().err

    return call


@pytest.fixture(scope="module")
def of_ewc(tmp_path_factory) -> Path:
    return small_runs.learn(tmp_path_factory.mktemp("ewc"), "split-digits", 2, "ewc", hidden=(8,), epochs=1).path


def test_methods_without_a_posterior_are_reported_without_units(report_command, of_ewc, tmp_path):
    code, said = report_command(of_ewc, "--out", tmp_path / "page.html")
    assert code == 0
    assert "is reported without its units" in said
    page = Page((tmp_path / "page.html").read_text())
    assert "Units can be looked into in runs of vcl, joint-vcl" in page.text
    assert "How it was made" in page.texts


def test_runs_whose_data_cannot_be_had_are_reported_without_units(
    report_command, split_folder, tmp_path, monkeypatch
):
    def build(*arguments: object) -> None:
        raise VclError("The data is nowhere to be found.")

    monkeypatch.setattr("vcl.runs.stored.build", build)
    code, said = report_command(split_folder, "--out", tmp_path / "page.html")
    assert code == 0
    assert "The data is nowhere to be found." in said
    assert "The data is nowhere to be found." in Page((tmp_path / "page.html").read_text()).text


def test_a_run_that_is_not_complete_is_refused(report_command, of_ewc, tmp_path):
    stopped = Path(shutil.copytree(of_ewc, tmp_path / of_ewc.name))
    (stopped / "result.json").unlink()
    code, said = report_command(stopped, "--out", tmp_path / "page.html")
    assert code == 2
    assert "is not complete" in said
    assert "vcl resume" in said
    assert not (tmp_path / "page.html").exists()


def test_a_page_that_cannot_be_written_is_refused(report_command, of_ewc, tmp_path):
    code, said = report_command(of_ewc, "--out", tmp_path / "missing" / "page.html")
    assert code == 2
    assert "Could not write" in said


# Safety and size


def test_whatever_a_run_is_called_stays_text(split):
    record = {**split.record, "command": HOSTILE, "task_names": [HOSTILE, "b", "c"], "version": HOSTILE}
    record["config"] = {**record["config"], "recipe": HOSTILE, "learner": {"setting": HOSTILE}}
    result = {
        **split.result,
        "run": HOSTILE,
        "benchmark": HOSTILE,
        "method": HOSTILE,
        "task_names": [HOSTILE, "b", "c"],
    }
    hostile = Reported(record, result, split.inside)
    ordinary = Page(render([split, split]))
    page = Page(render([hostile, replace(hostile, inside=HOSTILE)]))
    assert [tag for tag, _ in page.tags].count("script") == [tag for tag, _ in ordinary.tags].count("script") - 1
    assert not any(tag == "img" for tag, _ in page.tags)
    assert not any(name.startswith("on") for _, attributes in page.tags for name in attributes)
    assert page.units()["tasks"][0] == HOSTILE
    assert HOSTILE in page.texts


def test_embedded_json_cannot_end_its_script():
    text = embedded({"name": HOSTILE})
    assert "<" not in text
    assert ">" not in text
    assert json.loads(text) == {"name": HOSTILE}
    with pytest.raises(ValueError, match="JSON compliant"):
        embedded([float("nan")])


def test_a_page_needs_nothing_from_elsewhere(split):
    text = render([split])
    addresses = set(re.findall(r"https?://[^\s'\"<)]+", text))
    assert addresses == {"http://www.w3.org/2000/svg"}
    page = Page(text)
    assert not any(tag == "link" or "src" in attributes for tag, attributes in page.tags)
    policy = next(a["content"] for _, a in page.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert "default-src 'none'" in policy


def test_a_report_of_two_hundred_units_and_five_tasks_stays_small(split):
    """Even weights that cannot be compressed at all: every byte of them random."""
    rng = np.random.default_rng(0)
    noise = rng.uniform(-1, 1, (5, 200, 784))
    images = [packed_means(noise, Tile.of((28, 28))), packed_variances(noise, Tile.of((28, 28)))]
    assert sum(len(image["bytes"]) for image in images) < 2.2e6
    assert len(render([split])) < 0.2e6


def test_the_same_run_gives_the_same_page(split):
    assert render([split]) == render([split])


# Charts


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (0.0, 49.0, [0, 10, 20, 30, 40, 50]),
        (98.63, 99.95, [98.5, 98.75, 99, 99.25, 99.5, 99.75, 100]),
        (3.0, 3.0, [3, 3.5]),
    ],
)
def test_ticks_are_round_and_enclose_the_values(low, high, ticks):
    found = nice_ticks(low, high)
    assert found[0] <= low
    assert found[-1] >= high
    assert found == ticks


def test_a_chart_has_a_point_for_each_value():
    chart = Page(line_chart("a < b", "%", [("x", [1.0, 2.0, 3.0]), ("y", [None, 5.0, None])]))
    assert sum(tag == "circle" for tag, _ in chart.tags) == 3 + 1  # the last in the legend
    heights = [float(a["cy"]) for tag, a in chart.tags if tag == "circle"][:3]
    assert heights == sorted(heights, reverse=True)
    np.testing.assert_allclose(np.diff(heights)[0], np.diff(heights)[1], atol=0.11)
    assert "a < b" in chart.texts


def test_the_script_cannot_end_itself_early():
    script = (files("vcl.report.page") / "explorer.js").read_text()
    assert "</script" not in script.lower()
    assert "<!--" not in script


@pytest.mark.parametrize(("paper", "ink"), [((255, 255, 255), (27, 31, 36)), ((13, 17, 23), (230, 237, 243))])
@pytest.mark.parametrize("colour", [ORANGE, BLUE])
def test_numbers_stay_legible_on_the_darkest_shade(paper, ink, colour):
    """A contrast of 4.5 to 1, as the Web Content Accessibility Guidelines ask for."""

    def luminance(rgb: np.ndarray) -> float:
        share = rgb / 255
        linear = np.where(share <= 0.04045, share / 12.92, ((share + 0.055) / 1.055) ** 2.4)
        return float(linear @ [0.2126, 0.7152, 0.0722])

    behind = MOST_OPAQUE * np.array(colour) + (1 - MOST_OPAQUE) * np.array(paper)
    low, high = sorted((luminance(behind), luminance(np.array(ink))))
    assert (high + 0.05) / (low + 0.05) > 4.5
    assert all("#{:02x}{:02x}{:02x}".format(*rgb).replace("#ffffff", "#fff") in STYLE for rgb in (paper, ink))
