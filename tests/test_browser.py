"""The explorer in a real browser: what is seen there against what the analysis computed."""

import os
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import small_runs
from playwright.sync_api import Browser, BrowserContext, Page
from report import browser, chromium
from test_report import made_up

from vcl.report.page.explorer import MEASURES
from vcl.report.page.html import Reported, render

HOSTILE = "</script><script>window.hacked = 1</script><!--<img src=http://x.invalid onerror='window.hacked = 1'>"


@pytest.fixture(scope="module")
def driven() -> Iterator[Browser]:
    if chromium() is None:
        reason = "There is no chromium on this machine. Install it: apt-get install chromium"
        if os.environ.get("CI") or os.environ.get("VCL_REQUIRE_BROWSER"):
            pytest.fail(reason)
        pytest.skip(reason)
    with browser() as found:
        yield found


@pytest.fixture(scope="module")
def split(tmp_path_factory) -> Reported:
    return small_runs.reported(small_runs.split(tmp_path_factory.mktemp("split")))


@pytest.fixture(scope="module")
def permuted(tmp_path_factory) -> Reported:
    return small_runs.reported(small_runs.permuted(tmp_path_factory.mktemp("permuted")))


@pytest.fixture
def show(driven, tmp_path) -> Iterator:
    """Opens a report; whatever it complains of, or asks from elsewhere, fails the test."""
    complaints: list[str] = []
    contexts: list[BrowserContext] = []

    def open_page(*runs: Reported, **options) -> Page:
        path = tmp_path / "report.html"
        path.write_text(render(runs), encoding="utf-8")
        context = driven.new_context(**options)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: complaints.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: complaints.append(f"error: {error}"))
        page.on("request", lambda request: note_request(request.url, path))
        page.goto(path.as_uri())
        page.wait_for_selector(".explorer:not([data-ready])", state="detached")
        return page

    def note_request(url: str, path: Path) -> None:
        if url != path.as_uri() and not url.startswith(("data:", "blob:")):
            complaints.append(f"request: {url}")

    yield open_page
    for context in contexts:
        context.close()
    assert complaints == []


def units_shown(page: Page) -> list[int]:
    """Numbers of the units in the grid, from 1, in order."""
    return page.eval_on_selector_all(".unit", "cells => cells.map((cell) => Number(cell.dataset.unit))")


def move_to_task(page: Page, task: int) -> None:
    page.locator("input[name=task]").fill(str(task))


def status(page: Page) -> str:
    return page.inner_text("[role=status]")


def told(page: Page, measure: str) -> float:
    """A number of the chosen unit, as it is written."""
    return float(page.inner_text(f"[data-measure={measure}]").split()[0])


def pixels(page: Page, selector: str) -> np.ndarray:
    """The colours of a canvas: [row, column, (red, green, blue)]."""
    width, height, values = page.eval_on_selector(
        selector,
        "c => [c.width, c.height, [...c.getContext('2d').getImageData(0, 0, c.width, c.height).data]]",
    )
    return np.array(values).reshape(height, width, 4)[..., :3].astype(int)


# Tasks, filters, order


def test_the_slider_shows_what_was_active_after_each_task(show, split):
    page = show(split)
    layer = split.inside.layers[0]
    assert page.inner_text(".slider span") == "after task 3: 4v5"
    for task in (1, 2, 3):
        move_to_task(page, task)
        active = layer.active[task - 1]
        assert f"{active.sum()} are active and {12 - active.sum()} pruned" in status(page)
        pruned = page.eval_on_selector_all(".unit.pruned", "cells => cells.map((c) => Number(c.dataset.unit))")
        assert sorted(pruned) == [u + 1 for u in np.flatnonzero(~active)]
        # Not by paleness alone.
        marks = page.eval_on_selector_all(
            ".unit", "cells => cells.map((c) => [c.dataset.unit, c.innerText.split(/\\s+/)[1]])"
        )
        for unit, mark in marks:
            assert mark == (str(layer.first_active[int(unit) - 1]) if active[int(unit) - 1] else "×")


def test_the_slider_obeys_the_keyboard(show, split):
    page = show(split)
    page.focus("input[name=task]")
    page.keyboard.press("ArrowLeft")
    assert page.get_attribute("input[name=task]", "aria-valuetext") == "after task 2: 2v3"
    assert "After task 2" in status(page)
    page.keyboard.press("Home")
    assert "After task 1" in status(page)


def test_filters_let_through_what_they_say(show, split):
    page = show(split)
    layer = split.inside.layers[0]
    after = 1
    move_to_task(page, after + 1)
    expected = {
        "all": np.ones(12, bool),
        "active": layer.active[after],
        "pruned": ~layer.active[after],
        "1": layer.first_active == 1,
        "2": layer.first_active == 2,
        "3": layer.first_active == 3,
    }
    assert len({tuple(mask) for mask in expected.values()}) >= 5
    for name, mask in expected.items():
        page.select_option("select[name=filter]", name)
        assert sorted(units_shown(page)) == [u + 1 for u in np.flatnonzero(mask)]
        assert status(page).startswith(f"{mask.sum()} of 12 units shown")


@pytest.mark.parametrize("measure", ["information", "signal_to_noise", "removal_effect"])
def test_units_are_sorted_by_what_was_measured(show, split, measure):
    page = show(split)
    page.select_option("select[name=sort]", measure)
    for task in (1, 3):
        move_to_task(page, task)
        values = getattr(split.inside.layers[0], measure)[task - 1]
        assert units_shown(page) == [u + 1 for u in np.argsort(-values, kind="stable")]


def test_units_are_sorted_by_number_and_by_first_activation(show, split):
    page = show(split)
    page.select_option("select[name=sort]", "number")
    assert units_shown(page) == list(range(1, 13))
    page.select_option("select[name=sort]", "first_active")
    first = split.inside.layers[0].first_active
    order = np.argsort(np.where(first == 0, 99, first), kind="stable")
    assert units_shown(page) == [u + 1 for u in order]


# One unit


def test_a_unit_picked_by_mouse_shows_its_numbers_after_each_task(show, split):
    page = show(split)
    layer = split.inside.layers[0]
    for unit in (np.flatnonzero(layer.first_active == 2)[0], np.flatnonzero(layer.first_active == 0)[0]):
        page.click(f".unit[data-unit='{unit + 1}']")
        assert page.inner_text(".detail h4").startswith(f"Unit {unit + 1}")
        for task in (1, 2, 3):
            move_to_task(page, task)
            for measure, field in MEASURES.items():
                expected = getattr(layer, field)[task - 1, unit]
                assert told(page, measure) == pytest.approx(expected, rel=6e-2 if expected < 1e-3 else 6e-3)
            assert page.inner_text(".badge") == ("active" if layer.active[task - 1, unit] else "pruned")
        first = layer.first_active[unit]
        since = f"First activated by task {first}: 2v3." if first else "Never activated."
        assert page.inner_text(".since").startswith(since)
        filled = page.locator(".curves figure >> nth=0").locator("circle.was-active").count()
        assert filled == layer.active[:, unit].sum()


def test_a_unit_is_picked_and_closed_by_keyboard(show, split):
    page = show(split)
    page.select_option("select[name=sort]", "number")
    page.focus(".unit[tabindex='0']")
    assert page.locator(".unit[tabindex='0']").count() == 1
    columns = page.evaluate(
        "(() => { const c = [...document.querySelectorAll('.unit')];"
        " return c.filter((x) => x.offsetTop === c[0].offsetTop).length; })()"
    )
    for key in ("Home", "ArrowRight", "ArrowRight", "ArrowLeft"):
        page.keyboard.press(key)
    page.keyboard.press("Enter")
    assert page.inner_text(".detail h4").startswith("Unit 2")
    assert page.get_attribute(".unit[data-unit='2']", "aria-selected") == "true"
    if columns < 10:
        page.keyboard.press("ArrowDown")
        page.keyboard.press("Space")
        assert page.inner_text(".detail h4").startswith(f"Unit {2 + columns}")
    page.keyboard.press("End")
    page.keyboard.press("Enter")
    assert page.inner_text(".detail h4").startswith("Unit 12")
    page.keyboard.press("Escape")
    assert page.locator(".detail h4").count() == 0
    assert page.evaluate("document.activeElement.dataset.unit") == "12"
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"


def test_every_control_is_reached_with_tab_and_named(show, split):
    page = show(split)
    page.click(".unit >> nth=0")
    page.focus("input[name=task]")
    seen = []
    for _ in range(7):
        seen.append(
            page.evaluate(
                "document.activeElement.name || document.activeElement.className || document.activeElement.tagName"
            )
        )
        page.keyboard.press("Tab")
    assert seen[:4] == ["task", "filter", "sort", "contrast"]
    assert any("unit" in name for name in seen)
    assert "BUTTON" in seen
    for name in ("task", "filter", "sort", "contrast"):
        assert page.eval_on_selector(f"[name={name}]", "e => e.labels.length") == 1
    label = page.get_attribute(".unit >> nth=0", "aria-label")
    assert re.match(r"unit \d+, (active, first activated by task \d|pruned), information .* nats", label)


def test_images_have_the_signs_of_the_weights(show, split):
    page = show(split)
    means = np.asarray(split.inside.posteriors[-1].mean.body[0].weight)
    unit = int(np.abs(means).sum(axis=0).argmax())
    page.click(f".unit[data-unit='{unit + 1}']")
    expected = means[:, unit].reshape(8, 8)
    large = np.abs(expected) > np.abs(means).max() / 20
    assert large.sum() > 10
    for selector in (f".unit[data-unit='{unit + 1}'] canvas", ".images figure >> nth=0 >> canvas >> nth=0"):
        colours = pixels(page, selector)
        assert colours.shape == (8, 8, 3)
        # Orange has more red than blue; blue the other way round.
        np.testing.assert_array_equal(np.sign(colours[..., 0] - colours[..., 2])[large], np.sign(expected)[large])


def test_the_variance_image_grows_brighter_with_variance_and_names_its_range(show, split):
    page = show(split)
    variances = np.exp(np.asarray(split.inside.posteriors[-1].log_var.body[0].weight))
    page.select_option("select[name=sort]", "information")
    page.click(".unit >> nth=0")
    unit = units_shown(page)[0] - 1
    colours = pixels(page, ".images figure >> nth=1 >> canvas >> nth=0")
    expected = variances[:, unit].reshape(8, 8)
    # Viridis' green channel grows all along.
    assert np.corrcoef(colours[..., 1].ravel(), expected.ravel())[0, 1] > 0.95
    high = float(page.inner_text(".images figure >> nth=1 >> .scale").split()[-1])
    assert high == pytest.approx(expected.max(), rel=0.03)


def test_outgoing_weights_are_those_to_the_heads_trained_so_far(show, split):
    page = show(split)
    page.click(".unit[data-unit='4']")
    for task in (1, 3):
        move_to_task(page, task)
        q = split.inside.posteriors[task - 1]
        weights = page.locator(".ridge text", has_text="±").all_text_contents()
        assert len(weights) == 2 * task
        for row, text in enumerate(weights):
            mean, sd = map(float, text.split(" ± "))
            assert mean == pytest.approx(float(q.mean.head.weight[row // 2, 3, row % 2]), rel=6e-3, abs=6e-5)
            assert sd == pytest.approx(float(np.exp(0.5 * q.log_var.head.weight[row // 2, 3, row % 2])), rel=6e-3)
        groups = page.locator(".ridge .group").all_text_contents()
        assert groups == [f"task {t + 1}: {2 * t}v{2 * t + 1}" for t in range(task)]
    heights = page.eval_on_selector_all(".ridge path", "paths => paths.map((p) => p.getBBox().height)")
    assert max(heights) < 25


def test_a_units_past_is_shown_as_a_strip(show, split):
    page = show(split)
    page.click(".unit[data-unit='4']")
    assert page.locator(".strip canvas").count() == 3
    assert page.inner_text(".strip .current") == "task 3"
    move_to_task(page, 1)
    assert page.inner_text(".strip .current") == "task 1"


# Inputs that are no grey images


def test_units_of_colour_images_are_drawn_in_colour(show):
    run = made_up((3, 32, 32))
    page = show(run)
    q = run.inside.posteriors[-1]
    means = np.asarray(q.mean.body[0].weight)
    page.select_option("select[name=sort]", "number")
    page.click(".unit[data-unit='2']")
    planes = np.moveaxis(means[:, 1].reshape(3, 32, 32), 0, -1)
    # The grid has one scale for all units, after all tasks; the selected unit has its own.
    common = max(np.abs(np.asarray(p.mean.body[0].weight)).max() for p in run.inside.posteriors)
    scales = {
        ".unit[data-unit='2'] canvas": common,
        ".images figure >> nth=0 >> canvas >> nth=0": np.abs(planes).max(),
    }
    for selector, end in scales.items():
        colours = pixels(page, selector)
        assert colours.shape == (32, 32, 3)
        np.testing.assert_allclose(colours, 127.5 * (1 + planes / end), atol=2.5)
    variances = np.exp(np.asarray(q.log_var.body[0].weight))[:, 1].reshape(3, 32, 32).mean(axis=0)
    colours = pixels(page, ".images figure >> nth=1 >> canvas >> nth=0")
    assert colours.shape == (32, 32, 3)
    assert np.corrcoef(colours[..., 1].ravel(), variances.ravel())[0, 1] > 0.95
    assert "Grey is 0" in page.inner_text(".explorer")
    assert "mean over colours" in page.inner_text(".images figure >> nth=1")
    assert pixels(page, ".strip canvas >> nth=0").shape == (32, 32, 3)


def test_units_of_inputs_that_are_no_images_are_drawn_as_grids(show):
    run = made_up((54,))
    page = show(run)
    width, height, opaque = page.eval_on_selector(
        ".unit[data-unit='1'] canvas",
        "c => [c.width, c.height,"
        " [...c.getContext('2d').getImageData(0, 0, 8, 7).data].filter((_, at) => at % 4 === 3)]",
    )
    assert (width, height) == (8, 7)
    assert opaque == [255] * 54 + [0] * 2
    assert "Orange is positive" in page.inner_text(".explorer")


# Several layers, several runs


def test_layers_are_chosen_and_weights_lead_into_the_units_above(show, permuted):
    page = show(permuted)
    analysis = permuted.inside
    q = analysis.posteriors[-1]
    assert len(units_shown(page)) == 24
    page.click(".unit[data-unit='7']")
    means, sds = np.asarray(q.mean.body[1].weight)[6], np.exp(0.5 * np.asarray(q.log_var.body[1].weight)[6])
    surest = np.argsort(-np.abs(means) / sds)
    names = page.locator(".ridge text", has_text="unit").all_text_contents()
    assert len(names) == 12
    # A byte for each weight: neighbours in the order may change places.
    assert int(names[0].split()[1]) - 1 in surest[:3]
    shown = [
        tuple(map(float, t.split(" ± "))) for t in page.locator(".ridge text", has_text="±").all_text_contents()
    ]
    scale = np.abs(np.asarray([p.mean.body[1].weight for p in analysis.posteriors])).max()
    for name, (mean, _) in zip(names, shown, strict=True):
        assert mean == pytest.approx(means[int(name.split()[1]) - 1], abs=float(0.6 * scale / 127))
    page.select_option("select[name=layer]", "1")
    assert len(units_shown(page)) == 16
    strongest = int(np.argmax(analysis.layers[1].removal_effect[-1]))
    assert page.inner_text(".detail h4").startswith(f"Unit {strongest + 1}")
    for task in (1, 2):
        move_to_task(page, task)
        assert f"{analysis.counts[1, task - 1]} are active" in status(page)
    page.click(".unit >> nth=0")
    assert pixels(page, ".unit >> nth=0 >> canvas").shape == (8, 8, 3)
    assert page.locator(".images figure").count() == 3
    assert set("0123456789") <= set(page.locator(".ridge text").all_text_contents())
    assert page.text_content(".ridge .group") == "one head for all tasks"


def test_every_run_of_a_report_has_an_explorer_of_its_own(show, split, permuted):
    page = show(split, permuted)
    explorers = page.locator(".explorer")
    assert explorers.count() == 2
    explorers.nth(1).locator("select[name=layer]").select_option("1")
    chosen = explorers.nth(0).locator(".detail h4").inner_text()
    explorers.nth(1).locator(".unit").first.click()
    assert explorers.nth(1).locator(".detail h4").count() == 1
    assert explorers.nth(0).locator(".detail h4").inner_text() == chosen
    assert explorers.nth(0).locator(".unit").count() == 12
    assert explorers.nth(1).locator(".unit").count() == 16


# Widths, schemes, hostility


@pytest.mark.parametrize("width", [360, 768, 1280])
def test_nothing_sticks_out_to_the_side(show, split, permuted, width):
    page = show(split, permuted, viewport={"width": width, "height": 740})
    for number in (0, 1):
        page.locator(".explorer").nth(number).locator(".unit").first.click()
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_dark_pages_are_dark_and_their_text_is_legible(show, split):
    for scheme, is_dark in (("dark", True), ("light", False)):
        page = show(split, color_scheme=scheme)
        page.click(".unit >> nth=0")
        paper, ink = (
            np.array(
                [
                    int(part)
                    for part in re.findall(
                        r"\d+", page.eval_on_selector("body", f"e => getComputedStyle(e).{name}")
                    )[:3]
                ]
            )
            for name in ("backgroundColor", "color")
        )
        assert (paper.mean() < 60) == is_dark
        assert abs(paper.mean() - ink.mean()) > 150


def test_a_hostile_name_runs_nothing(show, split):
    record = {**split.record, "command": HOSTILE, "task_names": [HOSTILE, "2v3", "4v5"]}
    result = {**split.result, "benchmark": HOSTILE, "run": HOSTILE, "task_names": record["task_names"]}
    page = show(replace(split, record=record, result=result))
    page.click(".unit >> nth=0")
    move_to_task(page, 1)
    assert page.inner_text(".slider span") == f"after task 1: {HOSTILE}"
    assert page.evaluate("window.hacked") is None
    assert HOSTILE in page.inner_text("pre >> nth=0")
