"""The trace: what each unit costs and is worth during training, without a change to what is learnt."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import make_stream
from safetensors.numpy import load
from test_cli import TINY, vcl  # noqa: F401

from vcl import runs
from vcl.analysis import trace
from vcl.analysis.stored import beliefs
from vcl.analysis.trace import UnitTracer, measure, read, some_of, tracer
from vcl.analysis.units import without
from vcl.benchmarks import StreamOptions
from vcl.benchmarks.streams import online
from vcl.core import Examples
from vcl.errors import VclError
from vcl.methods.vcl import VCL
from vcl.nets import Affine, from_layers, select_head
from vcl.posteriors.mean_field import Gaussian, isotropic, kl, logits_local
from vcl.runs.events import Silent
from vcl.runs.fold import Interrupted, learn
from vcl.runs.folder import RunFolder, dump_tree
from vcl.runs.sweep import run_all
from vcl.training import Fitter, to_device

SMALL = {"hidden": (8, 5), "epochs": 30, "batch_size": 64, "test_samples": 3}


def small_config(seed: int = 0):
    return runs.configure("split-digits", threads=1, seed=seed, stream=StreamOptions(num_tasks=2), **SMALL)


@pytest.fixture(scope="module")
def traced(tmp_path_factory) -> RunFolder:
    """A run that was traced from beginning to end."""
    root = tmp_path_factory.mktemp("traced")
    runs.run(small_config(), root, trace=tracer("vcl", VCL()))
    return RunFolder.open(root / small_config().name)


def files(folder: RunFolder) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.trace.iterdir())}


def learner_of(folder: RunFolder) -> VCL:
    return runs.from_record(folder.record).learner


# What is recorded


def test_a_trace_does_not_change_a_bit_of_the_result(tmp_path, traced):
    plain = runs.run(small_config(), tmp_path)
    for key in ("state_sha256", "accuracy_matrix", "scores", "steps"):
        assert plain[key] == traced.result[key], key
    assert not (tmp_path / small_config().name / "trace").exists()


def test_there_is_a_trace_of_each_task_with_the_promised_points(traced):
    traces = read(traced)
    assert [t.stage for t in traces] == [1, 2]
    for one in traces:
        np.testing.assert_array_equal(one.epochs, [*UnitTracer(traced, one.stage).epochs("train", 30)])
        assert [layer.benefit.shape for layer in one.layers] == [(len(one.epochs), 8), (len(one.epochs), 5)]
        for layer in one.layers:
            assert np.isfinite(np.stack(jax.tree.leaves(layer))).all()
            assert (layer.incoming_kl >= -1e-4).all()
            assert (layer.outgoing_kl >= -1e-4).all()
    names = [f"{stage:04d}-{epoch:06d}.safetensors" for stage in (1, 2) for epoch in traces[0].epochs]
    assert sorted(files(traced)) == names


@pytest.mark.parametrize("total", [1, 2, 7, 40, 600, 100_000])
def test_points_are_dense_at_the_start_and_reach_the_end(tmp_path, total):
    points = np.array(UnitTracer(RunFolder(tmp_path), 1).epochs("train", total))
    steps = np.diff(points)
    assert points[0] == 0
    assert points[-1] == total
    assert (steps > 0).all()
    assert len(points) <= 41
    # No point is further from the one before it than the ratio says, but for the rounding to whole epochs.
    assert (points[2:] - 0.5 <= (points[1:-1] + 0.5) * total ** (1 / 39) + 1e-6).all()


def test_only_the_training_itself_is_traced(tmp_path, traced):
    assert UnitTracer(traced, 1).epochs("maximum-likelihood", 10) == ()
    learner = VCL(hidden=(4,), epochs=3, start="previous", coreset=5)
    folder = RunFolder.create(tmp_path / "run", {})
    learn(learner, make_stream(), folder=folder, trace=lambda stage: UnitTracer(folder, stage))
    assert folder.snapshots() == [(stage, epoch) for stage in (1, 2, 3) for epoch in (0, 1, 2, 3)]


def test_of_a_task_in_batches_the_last_is_traced(tmp_path):
    folder, stream = RunFolder.create(tmp_path / "run", {}), online(make_stream(), 25, 0)
    learn(VCL(hidden=(4,), epochs=2), stream, folder=folder, trace=lambda stage: UnitTracer(folder, stage))
    ends = [stage + 1 for stage in range(len(stream.stages)) if stream.ends_task(stage)]
    assert len(ends) == 3 < len(stream.stages)
    assert sorted({stage for stage, _ in folder.snapshots()}) == ends


def test_a_run_without_a_trace_has_none(tmp_path):
    assert read(RunFolder.create(tmp_path / "run", {})) == []


# The costs


@pytest.fixture(scope="module")
def ends(traced) -> list[tuple[Gaussian, Gaussian]]:
    """The posterior and the prior in force at the end of each task, with the head in use, from the checkpoints."""
    prior, posteriors, heads = beliefs(traced)
    before = (prior, *posteriors[:-1])
    return [
        (select_head(q, head), select_head(p, head)) for q, p, head in zip(posteriors, before, heads, strict=True)
    ]


def by_hand(q: Gaussian, p: Gaussian, part, unit) -> float:
    """KL between two sets of independent Gaussians, term by term in float64."""
    numbers = [np.asarray(part(net), np.float64)[unit] for net in (q.mean, q.log_var, p.mean, p.log_var)]
    m, v, pm, pv = numbers[0], np.exp(numbers[1]), numbers[2], np.exp(numbers[3])
    return float(np.sum(np.log(np.sqrt(pv / v)) + (v + (m - pm) ** 2) / (2 * pv) - 0.5))


@pytest.mark.parametrize("task", [0, 1])
def test_the_last_point_has_the_divergences_of_the_checkpoints(traced, ends, task):
    (q, p), one = ends[task], read(traced)[task]
    for number, layer in enumerate(one.layers):
        last = number == len(one.layers) - 1

        def above(net, number=number, last=last):
            return net.head.weight if last else net.body[number + 1].weight

        for unit in range(layer.benefit.shape[1]):
            into = by_hand(q, p, lambda net, n=number: net.body[n].weight, np.s_[:, unit])
            into += by_hand(q, p, lambda net, n=number: net.body[n].bias, unit)
            assert layer.incoming_kl[-1, unit] == pytest.approx(into, rel=1e-3, abs=1e-3)
            out = by_hand(q, p, above, np.s_[unit])
            assert layer.outgoing_kl[-1, unit] == pytest.approx(out, rel=1e-3, abs=1e-3)
            sure = np.max(np.abs(above(q.mean)[unit]) / np.exp(0.5 * np.asarray(above(q.log_var)[unit])))
            assert layer.signal_to_noise[-1, unit] == pytest.approx(sure, rel=1e-4)


def test_the_units_of_a_layer_share_its_whole_divergence(traced, ends):
    for (q, p), one in zip(ends, read(traced), strict=True):
        for number, layer in enumerate(one.layers):
            here = kl(
                Gaussian(q.mean.body[number], q.log_var.body[number]),
                Gaussian(p.mean.body[number], p.log_var.body[number]),
            )
            assert layer.incoming_kl[-1].sum() == pytest.approx(float(here), rel=1e-4)


def test_the_first_point_is_the_start_that_the_learner_chose(traced):
    learner, layer = learner_of(traced), read(traced)[0].layers[0]
    # Means N(0, init_std²) and log-variances init_log_var, against N(0, prior_std²): the variances' part is certain.
    weights = 64 + 1
    ratio = np.exp(learner.init_log_var) / learner.prior_std**2
    variances = 0.5 * weights * (2 * np.log(learner.prior_std) - learner.init_log_var - 1 + ratio)
    means = layer.incoming_kl[0] - variances
    expected = 0.5 * weights * (learner.init_std / learner.prior_std) ** 2
    assert means.mean() == pytest.approx(expected, rel=4 * np.sqrt(2 / (8 * weights)))


# The benefits


def planted(useful: float, noise: float = -12.0) -> Gaussian:
    """Three units: the first decides the class by the sign of input 0, the second is idle, the third is pruned."""
    body = Affine(jnp.array([[1.0, 0.0, 0.5], [0.0, 1.0, 0.0]]), jnp.zeros(3))
    head = Affine(jnp.array([[-useful, useful], [0.0, 0.0], [0.0, 0.0]]), jnp.array([useful / 2, -useful / 2]))
    log_var = jax.tree.map(lambda a: jnp.full_like(a, noise), from_layers([body, head]))
    spread = log_var.head.weight.at[2].set(-40.0)
    return Gaussian(
        from_layers([body, head]), log_var.with_layers([*log_var.body, Affine(spread, log_var.head.bias)])
    )


def probes(size: int = 300, capacity: int = 400):
    rng = np.random.default_rng(5)
    inputs = rng.normal(0, 1, (size, 2)).astype(np.float32)
    inputs[:, 0] = np.sign(inputs[:, 0])
    return to_device(Examples(inputs, (inputs[:, 0] > 0).astype(np.int32)), capacity)


def test_a_unit_that_decides_is_worth_what_the_likelihood_says_and_a_pruned_one_nothing():
    q, data = planted(4.0), probes()
    (layer,) = measure(q, isotropic(q.mean, 0.0, 1.0), some_of(data))
    inputs, labels = np.asarray(data.inputs[:300], np.float64), np.asarray(data.labels[:300])

    def log_likelihood(unit: np.ndarray) -> float:
        margin = np.where(labels == 1, 1, -1) * (8.0 * unit - 4.0)
        return float(-np.logaddexp(0, -margin).sum())

    expected = log_likelihood(np.maximum(inputs[:, 0], 0)) - log_likelihood(np.zeros(300))
    assert expected > 500
    assert layer.benefit[0] == pytest.approx(expected, rel=0.01)
    # The idle unit only adds noise of variance exp(-12); the pruned one not even that.
    assert abs(layer.benefit[1]) < 0.1
    assert abs(layer.benefit[2]) < 1e-4


def test_a_benefit_is_that_of_a_network_from_which_the_unit_was_cut(traced, ends):
    (q, p), batch = ends[1], some_of(to_device(Examples(*digits(120)), 200))
    found = measure(q, p, batch)
    labels = np.asarray(batch.labels[:120])

    def log_likelihood(network: Gaussian) -> float:
        # With the filling, for the same noise.
        outputs = logits_local(jax.random.key(0), network, batch.inputs, trace.SAMPLES)
        logs = np.asarray(jax.nn.log_softmax(outputs), np.float64)
        return float(logs[:, np.arange(120), labels].mean(axis=0).sum())

    for number, width in enumerate((8, 5)):
        for unit in range(width):
            keep = [np.ones(8, bool), np.ones(5, bool)]
            keep[number][unit] = False
            fall = log_likelihood(q) - log_likelihood(without(q, tuple(keep)))
            assert found[number].benefit[unit] == pytest.approx(fall, rel=1e-3, abs=2e-2)


def digits(size: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(2)
    return rng.random((size, 64), np.float32), rng.integers(0, 2, size)


def test_examples_are_taken_from_all_of_the_data_and_the_filling_does_not_count():
    many = to_device(Examples(np.arange(4000, dtype=np.float32)[:, None], np.arange(4000) // 2000), 5000)
    batch = some_of(many)
    assert batch.inputs.shape == (trace.EXAMPLES, 1)
    assert bool(batch.mask.all())
    assert int(batch.labels.sum()) == trace.EXAMPLES // 2
    assert int(batch.size) == 4000
    few = some_of(to_device(Examples(np.ones((30, 1), np.float32), np.ones(30, np.int32)), 5000))
    assert int(few.mask.sum()) == 30
    np.testing.assert_array_equal(few.inputs[few.mask], np.ones((30, 1)))


def test_useless_units_die(tmp_path):
    """The paper's account: outgoing weights go to zero, then the incoming ones return to the prior."""
    learner = VCL(hidden=(20,), epochs=800, batch_size=60, learning_rate=0.02, init_std=0.3, variance_rate=1.0)
    folder = RunFolder.create(tmp_path / "run", {})
    stream = make_stream(sizes=(60,))
    learn(learner, stream, folder=folder, trace=lambda stage: UnitTracer(folder, stage))
    like = (trace.LayerTrace(*[np.zeros(20, np.float32)] * 4),)
    first, last = (folder.snapshot(1, epoch, like)[0] for epoch in (0, 800))
    dead = last.signal_to_noise < 0.5
    best = last.benefit.argmax()
    assert 10 <= dead.sum() < 20
    assert last.benefit[best] > 2 * (last.incoming_kl[best] + last.outgoing_kl[best])
    assert last.benefit[dead].max() < 0.02 * last.benefit[best]
    # The incoming weights of the dead are back at the prior.
    assert first.incoming_kl[dead].min() > 10
    assert last.incoming_kl[dead].max() < 0.5


# Interruptions


class StopAt:
    def __init__(self, opportunity: int) -> None:
        self.left = opportunity

    def __call__(self) -> bool:
        self.left -= 1
        return self.left < 0


def test_an_interrupted_trace_goes_on_to_the_same_bytes(tmp_path, traced):
    interruptions = 0
    while True:
        try:
            stop = StopAt(9 + 5 * interruptions)
            runs.run(small_config(), tmp_path, stop=stop, seconds_between_checkpoints=0.0, trace=UnitTracer)
            break
        except Interrupted:
            interruptions += 1
    assert interruptions >= 2
    broken = RunFolder.open(tmp_path / small_config().name)
    assert files(broken) == files(traced)
    assert broken.result["state_sha256"] == traced.result["state_sha256"]


def test_a_kill_after_a_look_before_its_checkpoint_leaves_the_same_bytes(tmp_path, stream):
    learner = VCL(hidden=(4,), epochs=12, batch_size=30)
    whole, broken = (RunFolder.create(tmp_path / name, {}) for name in ("whole", "broken"))
    learn(learner, stream, folder=whole, trace=lambda stage: UnitTracer(whole, stage))

    class Killed(Exception):
        pass

    class Deadly(UnitTracer):
        def snapshot(self, phase, epoch, *rest):
            super().snapshot(phase, epoch, *rest)
            if (self.stage, epoch) == (2, 7):
                raise Killed

    with pytest.raises(Killed):
        learn(learner, stream, folder=broken, trace=lambda stage: Deadly(broken, stage))
    (broken.trace / ".0002-000008.safetensors.half-x_7.vcl-tmp").write_bytes(b"half")
    broken.clean()
    learn(learner, stream, folder=broken, trace=lambda stage: UnitTracer(broken, stage))
    assert files(broken) == files(whole)


def test_equal_trees_make_equal_files():
    tree = {"ü": np.arange(3.0), "b": np.ones(2, np.int32)}
    assert len({dump_tree(tree, {"note": "ü", "steps": 5}) for _ in range(50)}) == 1


def test_a_damaged_look_is_told(tmp_path, traced):
    copy = RunFolder.create(tmp_path / "run", traced.record)
    copy.trace.mkdir()
    for name, contents in files(traced).items():
        (copy.trace / name).write_bytes(contents)
    (copy.trace / "0002-000003.safetensors").write_bytes(b"no")
    with pytest.raises(VclError, match=r"0002-000003.*remove the file"):
        read(copy)


def test_a_fit_looks_where_it_is_asked_to(stream):
    seen = []

    class Watcher:
        def epochs(self, phase, total):
            return (0, 3, 10, total)

        def snapshot(self, phase, epoch, params, args, data):
            seen.append((phase, epoch, int(data.size)))

    learner = VCL(hidden=(4,), epochs=20)
    state = learner.init(jax.random.key(0), stream.spec)
    data = to_device(stream.train(0), stream.spec.capacity)
    learner.observe(jax.random.key(0), state, stream.spec.task(0), data, Fitter(tracer=Watcher()))
    assert seen == [("train", epoch, 60) for epoch in (0, 3, 10, 20)]


# Several runs, and the command line


def test_runs_in_other_processes_are_traced(tmp_path, traced):
    config = small_config(0)
    (result,) = run_all([config], tmp_path, 1, watch=lambda row, now: None, trace=tracer("vcl", VCL()))
    assert result["state_sha256"] == traced.result["state_sha256"]
    other, here = files(RunFolder.open(tmp_path / config.name)), files(traced)
    assert other.keys() == here.keys()
    for name, contents in other.items():
        ours = load(here[name])
        for key, array in load(contents).items():
            # That process has one thread, this one may have more: sums round differently.
            np.testing.assert_allclose(array, ours[key], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("method", ["ewc", "joint-vcl", "separate-vcl"])
def test_other_methods_are_refused_before_anything_is_run(vcl, tmp_path, method):  # noqa: F811
    done = vcl("run", "split-digits", "--method", method, "--trace", "--out", tmp_path / "runs")
    assert done.code == 2
    assert "--method vcl" in done.err
    assert method in done.err
    assert not (tmp_path / "runs").exists()


class Listener(Silent):
    def __init__(self):
        self.warnings = []

    def warn(self, message):
        self.warnings.append(message)


def test_of_a_complete_run_without_a_trace_it_is_said_how_to_get_one(tmp_path, traced):
    plain = runs.configure("split-digits", threads=1, stream=StreamOptions(num_tasks=1), hidden=(4,), epochs=1)
    runs.run(plain, tmp_path)
    listener = Listener()
    runs.run(plain, tmp_path, reporter=listener, trace=UnitTracer)
    assert "--fresh --trace" in listener.warnings[0]
    assert not RunFolder.open(tmp_path / plain.name).snapshots()
    listener = Listener()
    runs.run(small_config(), traced.path.parent, reporter=listener, trace=UnitTracer)
    assert listener.warnings == []


def test_the_command_records_a_trace_and_resume_goes_on_with_it(vcl, tmp_path):  # noqa: F811
    out = tmp_path / "runs"
    done = vcl("run", "split-digits", *TINY, "--trace", "--json", "--out", out)
    assert done.code == 0, done.err
    (path,) = out.glob("split-digits-*")
    folder = RunFolder.open(path)
    before = files(folder)
    assert read(folder)
    # Go back to the end of task 1.
    (path / "result.json").unlink()
    folder.path_after(2).unlink()
    for name in before:
        if name.startswith("0002"):
            (folder.trace / name).unlink()
    again = vcl("resume", path, "--json")
    assert again.code == 0, again.err
    assert files(folder) == before
    assert json.loads(again.out)["state_sha256"] == json.loads(done.out)["state_sha256"]
