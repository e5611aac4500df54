"""Figures from stored runs: what they show is what was measured."""

import io
import itertools
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.colors import same_color, to_hex
from PIL import Image
from sklearn.isotonic import IsotonicRegression
from test_cli import refused, vcl  # noqa: F401
from test_report import made_up

from vcl import runs
from vcl.analysis import Layer, accuracy_change, analyse, backward_change, forward_use
from vcl.analysis.trace import LayerTrace, Trace
from vcl.benchmarks import StreamOptions
from vcl.errors import VclError
from vcl.methods import METHODS
from vcl.nets import MLP, zeros
from vcl.posteriors.mean_field import isotropic
from vcl.report import groups
from vcl.report.figures import gallery, tiles, units
from vcl.report.figures.accuracy import accuracy_figure, draw_accuracy, draw_comparison, draw_curves, spread_out
from vcl.report.figures.active_units import draw_active_units
from vcl.report.figures.counts import draw_counts
from vcl.report.figures.drawing import CHANNELS, DISTINCT, METHOD_COLOURS, PRUNED, canvas, method_colour, saved
from vcl.report.figures.grids import draw_grid
from vcl.report.figures.lives import draw_lives, of_tasks
from vcl.report.figures.output_weights import draw_output_weights
from vcl.report.figures.transfer import draw_transfer
from vcl.report.figures.units import Subject
from vcl.report.labels import labels
from vcl.runs.folder import RunFolder
from vcl.runs.stored import StoredRun

SPLIT = {"epochs": 10, "hidden": (8,), "test_samples": 3}
PERMUTED = {"epochs": 3, "hidden": (12, 7), "test_samples": 3, "batch_size": 256}


def learnt(root: Path, benchmark: str, seed: int, num_tasks: int, **settings) -> RunFolder:
    options = StreamOptions(num_tasks=num_tasks)
    config = runs.configure(benchmark, seed=seed, threads=1, stream=options, **settings)
    runs.run(config, root)
    return RunFolder.open(root / config.name)


def under_another_name(folder: RunFolder, path: Path, method: str, settings: dict) -> RunFolder:
    """A copy that says it was made by another method, or with other settings: how it is grouped is read there."""
    run = StoredRun(folder)
    record = folder.record
    record["method"] = method
    record["config"]["learner"].update(settings)
    copy = RunFolder.create(path, record)
    copy.replace_events(folder.events())
    for stage in folder.stages():
        copy.save_after(stage, run.state(stage), {}, keep=folder.stages())
    copy.write_result(run.result)
    return copy


@pytest.fixture(scope="session")
def stored(tmp_path_factory) -> SimpleNamespace:
    """A few small runs."""
    root = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NPROC", "1")  # this restores it
        runs.prepare_jax(1)
        first, second = (learnt(root, "split-digits", seed, num_tasks=3, **SPLIT) for seed in (0, 1))
        return SimpleNamespace(
            first=first,
            second=second,
            coreset=under_another_name(first, root / "coreset", "vcl", {"coreset": 10}),
            point=under_another_name(second, root / "point", "finetune", {}),
            permuted=learnt(root, "permuted-digits", 0, num_tasks=2, **PERMUTED),
        )


@pytest.fixture(scope="session")
def split(stored) -> Subject:
    return Subject("split", stored.first.record, analyse(stored.first))


@pytest.fixture(scope="session")
def permuted(stored) -> Subject:
    return Subject("permuted", stored.permuted.record, analyse(stored.permuted))


@pytest.fixture(scope="session")
def photographs() -> Subject:
    """A run on small colour photographs, (channel, row, column) as CIFAR's."""
    run = made_up((3, 6, 5))
    return Subject("photographs", run.record, run.inside)


def stopped(folder: RunFolder, root: Path) -> RunFolder:
    """The same run after one task only."""
    copy = RunFolder(root / folder.name)
    shutil.copytree(folder.path, copy.path)
    (copy.path / "result.json").unlink()
    for number in folder.stages()[1:]:
        (copy.checkpoints / f"after-{number:04d}.safetensors").unlink()
    return copy


def frames(axes) -> int:
    """How many units have a frame in a task's colour."""
    return sum(to_hex(patch.get_edgecolor()).upper() in DISTINCT for patch in axes.patches)


def made_up_layer(first_active: list[int], effect: list[float]) -> Layer:
    """A layer whose units were first activated by these tasks, and have these effects."""
    task = np.array(first_active)
    active = np.array([(task > 0) & (task <= after) for after in range(1, max(first_active) + 1)])
    zeros = np.zeros(active.shape)
    return Layer(zeros, zeros, zeros, zeros + np.array(effect), active)


# What is shown


@pytest.mark.parametrize(
    ("num_tasks", "stages"), [(1, [1]), (3, [1, 2, 3]), (5, [1, 2, 3, 4, 5]), (6, [1, 3, 6]), (10, [1, 5, 10])]
)
def test_stages_are_the_papers(num_tasks, stages):
    assert units.stages_shown(num_tasks) == stages


def test_of_too_many_units_each_task_keeps_those_that_matter_most():
    layer = made_up_layer([0, *[1] * 20, 2, 3, 3], [9.0, *range(20), 0.5, 0.1, 0.2])
    shown = units.units_shown(layer)
    assert len(shown) == units.MOST_UNITS
    assert set(shown) == {21, 22, 23, *range(12, 21)}
    assert list(layer.first_active[shown]) == sorted(layer.first_active[shown])


def test_classes_have_their_digits_where_a_task_is_called_by_them(split):
    assert split.class_names(1) == ["2", "3"]
    for names in (["Nov", "Dec", "Jan"], ["1v2v3", "a", "b"]):
        assert replace(split, record={**split.record, "task_names": names}).class_names(0) == ["0", "1"]


# The figures of one run


def test_active_units_have_a_row_for_each_stage(split):
    analysis = split.analysis
    shown = units.units_shown(analysis.layers[0])
    assert len(shown) > 0
    figure = draw_active_units(split)
    panels = [axes for axes in figure.axes if axes.get_label() != "<colorbar>"]
    assert len(panels) == 3 * analysis.num_tasks
    names = [str(unit + 1) for unit in shown]
    for stage in range(1, analysis.num_tasks + 1):
        means, variances, out = panels[3 * stage - 3 : 3 * stage]
        q = analysis.posteriors[stage - 1]
        for axes, weights in ((means, q.mean), (variances, q.log_var)):
            picture = axes.images[0].get_array()
            value = np.asarray(weights.body[0].weight[:, shown[-1]]).reshape(8, 8)
            value = value if axes is means else np.exp(value)
            np.testing.assert_allclose(picture[:, -8:], value, rtol=1e-6)
            assert frames(axes) == analysis.layers[0].active[stage - 1, shown].sum()
        # Of each trained head, each class: one point for each unit.
        points = [container.lines[0] for container in out.containers]
        expected = [np.asarray(q.mean.head.weight[h][shown, c]) for h in range(stage) for c in range(2)]
        np.testing.assert_allclose([point.get_ydata() for point in points], expected)
        assert [point.get_color() for point in points] == [DISTINCT[h] for h in range(stage) for _ in range(2)]
    for axes in (panels[0], panels[1], panels[-1]):
        assert [tick.get_text() for tick in axes.get_xticklabels()] == names


def test_a_caption_tells_what_is_not_shown(split):
    many = made_up_layer([*[1] * 15, 2, 3], [1.0] * 17)
    flat = isotropic(zeros(MLP((17,)), split.spec), 0.0, 1.0)
    crowded = replace(split.analysis, posteriors=(flat,) * 3, prior=flat, layers=(many,))
    figure = draw_active_units(replace(split, analysis=crowded))
    told = " ".join(figure.get_supxlabel().split())
    assert "Shown are the 12 units with the largest effect, from every task; 5 more were active." in told


def test_in_two_layers_weights_go_to_the_units_above(permuted):
    analysis = permuted.analysis
    goals = units.outgoing(analysis, 2, 0)
    above = units.units_shown(analysis.layers[1])
    assert sum(means.shape[1] for _, means, _ in goals) == len(above)
    (_, means, deviations) = goals[0]
    q = analysis.posteriors[1]
    np.testing.assert_array_equal(means[:, 0], np.asarray(q.mean.body[1].weight)[:, above[0]])
    np.testing.assert_allclose(deviations[:, 0] ** 2, np.exp(q.log_var.body[1].weight)[:, above[0]], rtol=1e-5)
    assert len(draw_active_units(permuted).axes) == 3 * 2 + 2


@pytest.mark.parametrize(("layer", "kind"), [*itertools.product((0, 1), ("means", "variances"))])
def test_grids_have_every_unit_and_frame_the_active_ones(permuted, layer, kind):
    analysis = permuted.analysis
    figure = draw_grid(permuted, layer, kind)
    *panels, _ = figure.axes
    measured = analysis.layers[layer]
    width = measured.active.shape[1]
    assert len(panels) == 2
    for stage, axes in enumerate(panels, start=1):
        active = int(analysis.counts[layer, stage - 1])
        assert axes.get_title() == f"after task {stage}: {active} of {width} units active"
        assert frames(axes) == active
        assert len(axes.patches) == width
        q = analysis.posteriors[stage - 1]
        weights = np.asarray(q.mean.body[layer].weight if kind == "means" else np.exp(q.log_var.body[layer].weight))
        picture = axes.images[0].get_array()
        # All weights are in it, and nothing else.
        np.testing.assert_allclose(np.sort(picture.compressed()), np.sort(weights.ravel()), rtol=1e-6)


def test_output_weights_are_gaussians_at_their_means(split):
    analysis = split.analysis
    figure = draw_output_weights(split)
    visible = [axes for axes in figure.axes if axes.get_visible()]
    assert len(visible) == 1 + 2 + 3
    for axes, (stage, head) in zip(visible, [(s, h) for s in (1, 2, 3) for h in range(s)], strict=True):
        assert axes.get_title() == f"after task {stage}, head {head + 1}"
        digits = [str(2 * head), str(2 * head + 1)]
        assert [tick.get_text() for tick in axes.get_yticklabels()] == digits
        active = analysis.layers[0].active[stage - 1]
        for place in range(2):
            for which, collection in zip(
                (~active, active), axes.collections[2 * place : 2 * place + 2], strict=True
            ):
                curves = np.array([path.vertices for path in collection.get_paths()])
                assert len(curves) == which.sum()
                if len(curves):
                    peaks = curves[np.arange(len(curves)), curves[..., 1].argmax(axis=1), 0]
                    q = analysis.posteriors[stage - 1]
                    expected = np.asarray(q.mean.head.weight[head][:, place])[which]
                    np.testing.assert_allclose(peaks, expected, rtol=1e-5, atol=1e-7)
            grey = axes.collections[2 * place].get_colors()
            assert all(same_color(colour[:3], to_hex(PRUNED)) for colour in grey)


def test_one_head_stands_in_one_row(permuted):
    figure = draw_output_weights(permuted)
    assert [axes.get_title() for axes in figure.axes] == ["after task 1", "after task 2"]
    assert [tick.get_text() for tick in figure.axes[0].get_yticklabels()] == [str(c) for c in range(10)]


def test_transfer_matrices_have_their_numbers(stored, split):
    analysis = split.analysis
    result = stored.first.result
    figure = draw_transfer("title", analysis, result)
    matrices = (
        100 * forward_use(analysis),
        backward_change(analysis),
        100 * accuracy_change(result["accuracy_matrix"]),
    )
    panels = [axes for axes in figure.axes if axes.get_label() != "<colorbar>"]
    for axes, matrix, form in zip(panels, matrices, ("%.0f", "%.3g", "%+.1f"), strict=True):
        assert [text.get_text() for text in axes.texts] == [form % value for value in matrix[~np.isnan(matrix)]]
    without = draw_transfer("title", analysis, None)
    assert len([axes for axes in without.axes if axes.get_label() != "<colorbar>"]) == 2


def made_up_trace(stage: int, seed: int) -> Trace:
    rng = np.random.default_rng(seed)
    return Trace(
        stage, np.array([0, 1, 5]), (LayerTrace(*(rng.uniform(1, 90, (3, 8)).astype(np.float32) for _ in range(4))),)
    )


def test_lives_are_drawn_for_each_unit(split):
    analysis = split.analysis
    traces = {task: made_up_trace(task, task) for task in (1, 2, 3)}
    figure = draw_lives(split, traces, 0)
    assert len(figure.axes) == 4 * 3
    for task, trace in traces.items():
        incoming, outgoing, benefit, balance = figure.axes[task - 1 :: 3]
        active = analysis.layers[0].active[task - 1]
        of = trace.layers[0]
        for axes, values in ((incoming, of.incoming_kl), (outgoing, of.outgoing_kl), (benefit, of.benefit)):
            pruned, alive = ([path.vertices for path in lines.get_paths()] for lines in axes.collections)
            np.testing.assert_allclose(np.array([*pruned, *alive])[..., 0], np.tile([0, 1, 5], (8, 1)))
            np.testing.assert_allclose([way[:, 1] for way in alive], values[:, active].T)
        ends = np.concatenate([dots.get_offsets() for dots in balance.collections[2:]])
        order = [*np.flatnonzero(~active), *np.flatnonzero(active)]
        cost = of.incoming_kl[-1] + of.outgoing_kl[-1]
        np.testing.assert_allclose(ends, np.stack([cost, of.benefit[-1]], axis=1)[order])


def test_of_a_task_in_batches_the_last_trace_is_shown(split):
    traces = [made_up_trace(stage, stage) for stage in range(1, 6)]
    in_batches = {**split.record, "stages": [0, 0, 1, 1, 2, 2]}
    shown = of_tasks(replace(split, record=in_batches), traces)
    assert {task: trace.stage for task, trace in shown.items()} == {1: 2, 2: 4}


# Inputs that are no grey images


def test_means_of_photographs_are_in_colour_and_variances_averaged_over_it(photographs):
    analysis = photographs.analysis
    (means, *_, bar), (variances, *_) = (draw_grid(photographs, 0, kind).axes for kind in ("means", "variances"))
    image = means.images[0]
    end = image.norm.vmax
    assert (image.norm.vmin, image.cmap.name) == (-end, CHANNELS)
    picture = image.get_array()
    # Six units in one row of ten; a gap of one between them.
    assert picture.shape == (6, 10 * 6 - 1, 4)
    q = analysis.posteriors[0]
    for unit in range(6):
        place = np.s_[:, 6 * unit : 6 * unit + 5]
        planes = np.asarray(q.mean.body[0].weight)[:, unit].reshape(3, 6, 5)
        for channel in range(3):
            expected = np.clip(0.5 + 0.5 * planes[channel] / end, 0, 1)
            np.testing.assert_allclose(picture[(*place, channel)], expected, atol=1e-6)
        assert (picture[(*place, 3)] == 1).all()
        spread = np.exp(np.asarray(q.log_var.body[0].weight))[:, unit].reshape(3, 6, 5)
        np.testing.assert_allclose(variances.images[0].get_array()[place], spread.mean(axis=0), rtol=1e-5)
    assert (picture[:, 5, 3] == 0).all()
    assert (picture[:, 6 * 6 :, 3] == 0).all()
    np.testing.assert_allclose(bar.get_ylim(), [-end, end])


def test_captions_tell_how_colours_are_to_be_read(photographs, split):
    def told(figure) -> str:
        return " ".join(figure.get_supxlabel().split())

    for figure in (draw_active_units(photographs), draw_grid(photographs, 0, "means")):
        assert "grey is 0, a brighter channel is positive" in told(figure)
    for figure in (draw_active_units(photographs), draw_grid(photographs, 0, "variances")):
        assert "Variances are averaged over the input's 3 channels." in told(figure)
    for figure in (draw_active_units(split), draw_grid(split, 0, "means"), draw_grid(split, 0, "variances")):
        assert "channel" not in told(figure)


def test_a_picture_in_colour_keeps_more_than_256_colours(photographs):
    picture = Image.open(io.BytesIO(saved(draw_active_units(photographs), "png")))
    assert picture.mode != "P"


@pytest.mark.parametrize("shape", [(3, 32, 32), (54,), (2, 4, 5), (1,)])
def test_inputs_of_any_shape_have_all_figures(shape, tmp_path):
    run = made_up(shape, hidden=(6, 4))
    folder = RunFolder.create(tmp_path / "run", run.record)
    said = []
    drawn = dict(gallery.draw([folder], lambda folder: run.inside, said.append))
    assert len(said) == 1  # it is not complete
    assert set(drawn) == {
        *("active-units-run", "transfer-run", "output-weights-run", "counts-run"),
        *(f"{kind}-layer{layer}-run" for kind in ("means", "variances") for layer in (1, 2)),
    }
    tall, wide = drawn["means-layer1-run"].axes[0].images[0].get_array().shape[:2]
    rows, columns = {3: (32, 32), 54: (7, 8), 2: (4, 5), 1: (1, 1)}[shape[0]]
    gap = max(1, columns // 12)
    assert (tall, wide) == (rows, 10 * (columns + gap) - gap)
    for figure in drawn.values():
        assert saved(figure, "png")


def test_variances_of_weights_that_are_not_there_have_a_scale():
    norm = tiles.variance_scale(np.zeros((2, 3)))
    assert 0 < norm.vmin < norm.vmax


# The figures of several runs


def test_counts_are_averaged_over_seeds(stored, split):
    first, second = split.analysis, analyse(stored.second)
    axes = draw_counts("title", [first, second]).axes[0]
    container = axes.containers[0]
    both = np.array([first.counts[0], second.counts[0]])
    np.testing.assert_allclose(container.lines[0].get_ydata(), both.mean(axis=0))
    bars = np.array([segment[1, 1] - segment[0, 1] for segment in container.lines[2][0].get_segments()])
    np.testing.assert_allclose(bars, 2 * both.std(axis=0, ddof=1))
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["hidden layer 1 (8 units)"]


def test_counts_of_a_run_that_has_not_got_so_far(stored, split, tmp_path):
    whole, part = split.analysis, analyse(stopped(stored.second, tmp_path))
    container = draw_counts("title", [whole, part]).axes[0].containers[0]
    first, *rest = whole.counts[0]
    np.testing.assert_allclose(container.lines[0].get_ydata(), [(first + part.counts[0, 0]) / 2, *rest])


def test_each_layer_has_its_line(permuted):
    axes = draw_counts("title", [permuted.analysis]).axes[0]
    np.testing.assert_array_equal([c.lines[0].get_ydata() for c in axes.containers], permuted.analysis.counts)


def test_curves_are_means_over_seeds(stored):
    results = [stored.first.result, stored.second.result]
    figure = draw_curves("title", [("without", results), ("with", [stored.coreset.result])])
    *tasks, average = [axes for axes in figure.axes if axes.get_visible()]
    assert [axes.get_title() for axes in tasks] == ["task 1: 0v1", "task 2: 2v3", "task 3: 4v5"]
    a = 100 * np.array([r["accuracy_matrix"] for r in results], dtype=float)
    for task, axes in enumerate(tasks):
        without, with_coreset = axes.lines
        np.testing.assert_allclose(without.get_ydata(), (a[0, :, task] + a[1, :, task]) / 2)
        one = [np.nan if row[task] is None else 100 * row[task] for row in stored.coreset.result["accuracy_matrix"]]
        np.testing.assert_allclose(with_coreset.get_ydata(), one)
    last = 50 * sum(result["average_accuracy"] for result in results)
    assert average.lines[0].get_ydata()[-1] == pytest.approx(last)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["without (2)", "with (1)"]


def test_a_figure_of_several_configurations_has_a_line_for_each(stored, tmp_path):
    accuracy_figure([stored.first.result, stored.second.result], tmp_path / "one.svg")
    both = draw_accuracy([stored.first.result, stored.second.result])
    assert both.axes[1].get_title() == "average over tasks seen, 2 seeds"
    result = stored.second.result
    other = {**result, "config": {**result["config"], "learner": {**result["config"]["learner"], "epochs": 99}}}
    accuracy_figure([stored.first.result, other], tmp_path / "two.svg")
    texts = (tmp_path / "two.svg").read_text()
    assert "<!-- vcl, epochs=10 (1) -->" in texts
    assert "<!-- vcl, epochs=99 (1) -->" in texts
    with pytest.raises(VclError, match="different tasks"):
        accuracy_figure([result, {**result, "task_names": ["a", "b", "c"]}], tmp_path / "three.svg")


def test_configurations_are_told_apart_in_titles_by_what_differs(stored, split):
    names = ("first", "second", "coreset")
    folders = [getattr(stored, name) for name in names]
    drawn = dict(gallery.draw(folders, lambda folder: split.analysis, lambda message: None))
    titles = [drawn[f"output-weights-{folder.name}"].get_suptitle().strip() for folder in folders]
    expected = ["no coreset, seed 0", "no coreset, seed 1", "coreset=10, seed 0"]
    assert titles == [f"Output weights: split-digits, vcl, {end}" for end in expected]
    assert drawn["counts-coreset"].get_suptitle() == "Number of active units: split-digits, vcl, coreset=10"
    legends = [text.get_text() for text in drawn["accuracy-split-digits-num-tasks-3"].legends[0].get_texts()]
    assert legends == ["vcl, no coreset (2)", "vcl, coreset=10 (1)"]


def test_many_tasks_have_some_panels():
    matrix = [[0.5 if task <= after else None for task in range(30)] for after in range(30)]
    result = {"task_names": [f"permutation {n}" for n in range(1, 31)], "accuracy_matrix": matrix}
    titles = [axes.get_title() for axes in draw_curves("title", [("vcl", [result])]).axes]
    assert len(titles) == 12
    assert titles[0] == "task 1: permutation 1"
    assert titles[-2] == "task 30: permutation 30"


def test_names_at_line_ends_are_as_near_as_can_be_without_overlapping():
    wanted = np.random.default_rng(0).random(20).round(1)
    places = np.array(spread_out(wanted.tolist(), 0.04))
    order = np.lexsort((places, wanted))
    steps = 0.04 * np.arange(20)
    nearest = IsotonicRegression().fit_transform(np.arange(20), np.sort(wanted) - steps) + steps
    np.testing.assert_allclose(places[order], nearest)
    assert np.diff(places[order]).min() >= 0.04 - 1e-9


def test_a_comparison_of_many_methods_colours_a_few_and_names_all():
    names = [*METHODS][:20]
    curves = [(name, [[1.0, 0.9 + 0.004 * n], [1.0, 0.9 + 0.004 * n]]) for n, name in enumerate(names)]
    drawn = draw_comparison("title", curves, "svg").decode()
    assert all(f"<!-- {name}  {90 + 0.4 * n:.2f} -->" in drawn for n, name in enumerate(names))
    coloured = [name for name in names if name in METHOD_COLOURS]
    assert coloured != names
    assert all((method_colour(name) in drawn) == (name in coloured) for name in names if name != "joint")
    # A few methods are all in colour, whatever they are called.
    assert method_colour("agem") in draw_comparison("title", [("agem", [[0.9, 0.8]])], "svg").decode()


# Groups


def test_seeds_go_together_and_coresets_apart(stored):
    folders = [stored.first, stored.coreset, stored.second, stored.point, stored.permuted]
    together = groups.configurations(folders)
    assert together == [[stored.first, stored.second], [stored.coreset], [stored.point], [stored.permuted]]
    assert groups.streams(folders) == [folders[:4], [stored.permuted]]
    told = labels([configuration[0].record for configuration in together[:2]], over_seeds=True)
    assert told == ["vcl, no coreset", "vcl, coreset=10"]
    assert labels([stored.point.record]) == ["finetune"]


def test_the_same_run_twice_is_refused(stored, tmp_path):
    copy = RunFolder(tmp_path / stored.first.name)
    shutil.copytree(stored.first.path, copy.path)
    with pytest.raises(VclError, match="are the same run"):
        groups.configurations([stored.first, copy])


# Files


def test_all_figures_are_written_and_the_same_every_time(stored, tmp_path):
    said = []
    folders = [stored.first, stored.second, stored.point]
    paths = [*gallery.figures(folders, tmp_path / "a", say=said.append)]
    runs_of_vcl = (stored.first.name, stored.second.name)
    of_one = ("active-units", "transfer", "means-layer1", "variances-layer1", "output-weights")
    names = {f"{kind}-{name}" for kind in of_one for name in runs_of_vcl}
    names |= {"accuracy-split-digits-num-tasks-3", f"counts-{stored.first.name.removesuffix('-seed0')}"}
    assert {path.name for path in paths} == {f"{name}.{kind}" for name in names for kind in ("svg", "png")}
    for path in paths:
        if path.suffix == ".png":
            assert min(Image.open(path).size) > 200
        else:
            assert ElementTree.parse(path).getroot().tag.endswith("svg")
    assert len(said) == 1
    assert said[0].startswith(f"{stored.point.name}: no figures of its units. ")
    again = [*gallery.figures([stored.first], tmp_path / "b", say=said.append)]
    same = [path for path in again if stored.first.name in path.name]
    assert len(same) == 2 * len(of_one)
    assert all(path.read_bytes() == (tmp_path / "a" / path.name).read_bytes() for path in same)


def test_a_run_that_is_not_complete_has_figures_of_its_units_only(stored, tmp_path):
    said = []
    folder = stopped(stored.first, tmp_path)
    names = [name for name, _ in gallery.draw([folder], analyse, said.append)]
    assert not [name for name in names if name.startswith("accuracy")]
    assert f"active-units-{folder.name}" in names
    assert len(said) == 1
    assert f"vcl resume {folder.path}" in said[0]


def test_a_run_without_active_units_has_its_other_figures(stored, split, tmp_path):
    (layer,) = split.analysis.layers
    dead = replace(split.analysis, layers=(replace(layer, active=np.zeros_like(layer.active)),))
    said = []
    names = [
        name
        for name, figure in gallery.draw([stored.first], lambda folder: dead, said.append)
        if saved(figure, "svg")
    ]
    assert f"active-units-{stored.first.name}" not in names
    assert len(names) == 6
    assert "no figure of active units" in said[0]


def test_nothing_to_draw_is_an_error(stored, tmp_path):
    folder = stopped(stored.point, tmp_path)
    with pytest.raises(VclError, match="nothing to draw"):
        [*gallery.figures([folder], tmp_path / "out", say=lambda message: None)]
    assert not (tmp_path / "out").exists()


def test_a_picture_keeps_its_colours():
    figure = canvas(3.0, 2.0, "title")
    axes = figure.subplots()
    for number, colour in enumerate(DISTINCT):
        axes.bar(number, 1, color=colour)
    small = np.asarray(Image.open(io.BytesIO(saved(figure, "png"))).convert("RGB")).reshape(-1, 3)
    for colour in DISTINCT:
        wanted = [int(colour[place : place + 2], 16) for place in (1, 3, 5)]
        assert np.abs(small.astype(int) - wanted).max(axis=1).min() <= 4


# The command


def test_the_command_names_each_file(vcl, stored, tmp_path):  # noqa: F811
    answer = vcl("figures", stored.point.path, stored.permuted.path, "--out", tmp_path / "out")
    assert answer.code == 0
    assert sorted(answer.out.split()) == sorted(map(str, (tmp_path / "out").iterdir()))
    assert f"{stored.point.name}: no figures of its units." in answer.err
    assert (tmp_path / "out" / f"means-layer2-{stored.permuted.name}.svg").exists()


def test_mistakes_of_the_command_are_told(vcl, stored, tmp_path):  # noqa: F811
    refused(vcl("figures"), "Name at least one run folder")
    refused(vcl("figures", stored.first.path, stored.first.path, "--out", tmp_path), "are the same run")
    refused(vcl("figures", stored.first.path, "--tolerance", "2", "--out", tmp_path), "--tolerance must be above 0")
    (tmp_path / "file").touch()
    refused(vcl("figures", stored.point.path, "--out", tmp_path / "file"), "Could not write")
