"""The report: what it says, what travels inside it, and what it must never let through."""

import base64
import gzip
import json
import re
import shutil
import sys
from dataclasses import replace
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
import small_runs
from jax import numpy as jnp

from vcl import cli
from vcl.analysis import exciting_patterns, forward_use
from vcl.errors import VclError
from vcl.gaussian import Gaussian
from vcl.report.charts import line_chart, nice_ticks
from vcl.report.explorer import columns, explorer_data, packed_means, packed_variances, rounded
from vcl.report.html import BLUE, MOST_OPAQUE, ORANGE, Reported, embedded, names_of, render
from vcl.store import RunFolder

HOSTILE = "</script><script>alert(1)</script><!-- & '\"><img src=x onerror=alert(2)>"

STYLE = (files("vcl.report") / "report.css").read_text()


@pytest.fixture(scope="module")
def split_folder(tmp_path_factory) -> Path:
    return small_runs.split(tmp_path_factory.mktemp("split")).path


@pytest.fixture(scope="module")
def split(split_folder) -> Reported:
    return small_runs.reported(RunFolder.open(split_folder))


@pytest.fixture(scope="module")
def permuted(tmp_path_factory) -> Reported:
    return small_runs.reported(small_runs.permuted(tmp_path_factory.mktemp("permuted")))


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
        assert f"{score['calibration_error']:.4f}" in page.texts
        assert f"{score['total_entropy'] - score['aleatoric_entropy']:.4f}" in page.texts
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
    assert "2 runs" in page.texts
    assert " + ".join(map(str, permuted.inside.counts[:, -1])) in page.texts
    explorers = [attributes for tag, attributes in page.tags if attributes.get("class") == "explorer"]
    assert [e["data-units"] for e in explorers] == ["units-1", "units-2"]
    assert page.units(1)["tasks"] == ["0v1", "2v3", "4v5"]
    assert len(page.units(2)["layers"]) == 2
    links = [attributes["href"] for tag, attributes in page.tags if tag == "a"]
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert [link[1:] for link in links] == [i for i in ids if i.startswith("run-")]
    assert len(ids) == len(set(ids))
    titles = [text for text in page.texts if text.startswith("Active units in layer")]
    assert titles == ["Active units in layer 1", "Active units in layer 2"]
    # In the links, as a heading, and in the legends of accuracy and of each layer.
    assert page.texts.count(split.title) == 2 + 2
    assert page.texts.count(permuted.title) == 2 + 3


def test_runs_of_the_same_kind_are_told_apart_by_their_folders(split):
    other = replace(split, result={**split.result, "run": "another"})
    assert names_of([split, other]) == [split.result["run"], "another"]
    assert names_of([split, replace(split, result={**split.result, "seed": 1})])[1] == "split-digits, vcl, seed 1"


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
            for name in ("information", "news", "signal_to_noise", "removal_effect"):
                np.testing.assert_allclose(sent[name], getattr(layer, name), rtol=1e-5)
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
        inputs = analysis.questions[max(task, 1) - 1].inputs
        expected = exciting_patterns(analysis.posteriors[-1], 1, inputs)[unit]
        np.testing.assert_allclose(shown[-1, unit], expected, atol=0.51 * sent["scale"] / 127)


def test_a_weight_that_is_not_there_has_variance_zero(split):
    q = split.inside.posteriors[-1]
    gone = q.log_var.body[0].weight.at[:, 3].set(-jnp.inf)
    body = (replace_weight(q.log_var.body[0], gone),)
    cut = Gaussian(q.mean, type(q.log_var)(body, q.log_var.head))
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
    packed = packed_means(values, 3)
    assert packed["scale"] == 2
    assert unpacked(packed, 1, 1).tolist() == [[[1, 128, 192]]]
    assert unpacked(packed_means(np.zeros((1, 1, 2)), 2), 1, 1).tolist() == [[[128, 128]]]
    assert unpacked(packed_variances(np.full((1, 1, 2), -3.0), 2), 1, 1).tolist() == [[[1, 1]]]
    assert unpacked(packed_variances(np.full((1, 1, 2), -np.inf), 2), 1, 1).tolist() == [[[0, 0]]]


def test_numbers_are_rounded_and_what_is_no_number_is_null():
    assert rounded(np.array([[1.23456789, np.nan], [np.inf, -2e-9]])) == [[1.23457, None], [None, -2e-9]]


@pytest.mark.parametrize(("shape", "width"), [((28, 28), 28), ((3, 32, 32), 32), ((100,), 10), ((6,), 3)])
def test_images_are_as_wide_as_they_are_and_the_rest_is_square(shape, width):
    assert columns(shape) == width


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
    assert "Units can be looked into in runs of vcl and joint-vcl." in page.text
    assert "How it was made" in page.texts


def test_runs_whose_data_cannot_be_had_are_reported_without_units(
    report_command, split_folder, tmp_path, monkeypatch
):
    def build(*arguments: object) -> None:
        raise VclError("The data is nowhere to be found.")

    monkeypatch.setattr("vcl.analysis.stored.build", build)
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
    images = [packed_means(noise, 28), packed_variances(noise, 28)]
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
    script = (files("vcl.report") / "explorer.js").read_text()
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
