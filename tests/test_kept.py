"""Models of one's own data: files, columns, the log, decisions, and the commands."""

import csv
import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from vcl import Model, VclError
from vcl.cli.app import start
from vcl.cli.learn import as_csv
from vcl.evaluation import Prediction
from vcl.kept import Batch, Encoder, KeptModel, read
from vcl.kept.decisions import HeldOut, reject_below, set_above, unfamiliar, unfamiliar_warning
from vcl.kept.drift import drift
from vcl.kept.files import fingerprint
from vcl.kept.onnx import export_onnx

SMALL = ("--hidden", "8", "--epochs", "30", "--quiet")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def vcl(*tokens: str) -> None:
    sys.argv = ["vcl", *tokens]
    start([*map(str, tokens)])


def refused(capsys, *tokens: str) -> str:
    with pytest.raises(SystemExit) as ending:
        vcl(*tokens)
    assert ending.value.code == 2
    return " ".join(capsys.readouterr().err.split())


def month(seed: int, examples: int = 300, shift: float = 0.0) -> Batch:
    """Customers: two numbers, one of them missing now and then, and a town."""
    rng = np.random.default_rng(seed)
    use, age = rng.normal(shift, 1, examples), rng.integers(18, 80, examples).astype(float)
    town = rng.choice(np.array(["Oslo", "Rom", "Ulm"], object), examples)
    labels = np.where(use - shift + (town == "Rom") > 0.3, "yes", "no").tolist()
    age[rng.random(examples) < 0.1] = np.nan
    return Batch(f"month-{seed}", {"use": use, "age": age, "town": town}, None, labels, "churned")


def write(path: str, batch: Batch, names: tuple[str, ...] = ("use", "age", "town")) -> str:
    columns = {name: ["" if str(v) == "nan" else v for v in batch.columns[name].tolist()] for name in names}
    with Path(path).open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*columns, "churned"])
        writer.writerows(zip(*columns.values(), batch.labels, strict=True))
    return path


def small(batch: Batch, **settings) -> KeptModel:
    return KeptModel.begin(batch, hidden=(8,), epochs=30, **settings)


# Columns


def test_the_encoder_does_what_scikit_learns_transformers_do():
    first, later = month(0), month(1)
    later.columns["town"][:5] = "Bern"
    encoder = Encoder.fit(first.columns)
    theirs = ColumnTransformer(
        [
            ("use", StandardScaler(), [0]),
            ("age", make_pipeline(SimpleImputer(), StandardScaler()), [1]),
            ("town", OneHotEncoder(handle_unknown="ignore", sparse_output=False), [2]),
        ]
    )
    as_rows = [np.stack([b.columns[n].astype(object) for n in ("use", "age", "town")], 1) for b in (first, later)]
    expected = theirs.fit(as_rows[0]).transform(as_rows[1])
    ours = encoder.encode(later.columns)
    missing = encoder.input_names.index("age is missing")
    np.testing.assert_array_equal(ours[:, missing], np.isnan(later.columns["age"]))
    np.testing.assert_allclose(ours[:, [0, 3, 4, 5]], expected[:, [0, 2, 3, 4]], atol=1e-9)
    # Theirs scales what it has filled in; ours scales by the values that are there.
    there = first.columns["age"][~np.isnan(first.columns["age"])]
    filled = np.where(np.isnan(later.columns["age"]), there.mean(), later.columns["age"])
    np.testing.assert_allclose(ours[:, 1], (filled - there.mean()) / there.std())
    assert Encoder.from_json(json.loads(json.dumps(encoder.to_json()))) == encoder


def test_columns_are_found_by_name_and_checked():
    first, later = month(0), month(1)
    encoder = Encoder.fit(first.columns)
    turned = dict(reversed(later.columns.items()))
    np.testing.assert_array_equal(encoder.encode(turned), encoder.encode(later.columns))
    with pytest.raises(VclError, match="'age' is missing"):
        encoder.encode({name: later.columns[name] for name in ("use", "town")})
    with pytest.raises(VclError, match=r"held numbers.*'Ulm'"):
        encoder.encode({**later.columns, "age": np.array(["Ulm"] * 300, object)})
    with pytest.raises(VclError, match="--ignore 'id'"):
        Encoder.fit({"id": np.array([f"c{i}" for i in range(200)], object)})


def test_a_constant_column_is_not_divided_by_its_rounding():
    constant = {"x": np.full(1000, 0.1)}
    assert constant["x"].std() > 0, "which is what makes it hard"
    encoder = Encoder.fit(constant)
    assert encoder.columns[0].std == 1.0
    np.testing.assert_allclose(encoder.encode({"x": np.array([0.1, 0.3])}), [[0.0], [0.2]], atol=1e-9)
    assert Encoder.fit({"x": np.array([1.7e9, 1.7e9 + 4])}).columns[0].std == 2.0


def test_a_batch_far_outside_is_reported():
    encoder = Encoder.fit(month(0).columns)
    assert encoder.warnings(month(1).columns) == []
    shifted = month(2, shift=4.0).columns
    shifted["town"][:30] = "Bern"
    told = encoder.warnings(shifted)
    assert "use: its mean" in told[0]
    assert "above" in told[0]
    assert "unknown categories Bern (10%" in told[1]


# Files


def test_all_formats_hold_the_same_batch(tmp_path):
    import pyarrow
    from pyarrow import parquet

    x, y = np.random.default_rng(0).normal(size=(20, 2)), np.arange(20) % 2
    np.savez("a.npz", x=x, y=y)
    np.save("b.npy", x)
    np.save("b-labels.npy", y)
    with Path("c.csv").open("w", newline="") as file:
        csv.writer(file).writerows(
            [["x1", "x2", "label"], *([*row, label] for row, label in zip(x, y, strict=True))]
        )
    parquet.write_table(pyarrow.table({"x1": x[:, 0], "x2": x[:, 1], "label": y}), "d.parquet")
    for name in ("a.npz", "b.npy", "c.csv", "d.parquet"):
        batch = read(Path(name))
        assert batch.labels == y.tolist(), name
        np.testing.assert_allclose(np.stack([batch.columns["x1"], batch.columns["x2"]], 1), x)


def test_a_folder_of_images_is_learnt_and_predicted(capsys):
    rng = np.random.default_rng(0)
    for kind, level in (("dark", 40), ("light", 200)):
        Path("shots", kind).mkdir(parents=True)
        for number in range(20):
            pixels = np.clip(rng.normal(level, 20, (4, 4)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(Path("shots", kind, f"{number}.png"))
    vcl("learn", "m.vcl", "shots", "--test", "0.2", "--hidden", "8", "--quiet")
    capsys.readouterr()
    vcl("predict", "m.vcl", "shots/dark", "--json")
    assert [row["class"] for row in json.loads(capsys.readouterr().out)] == ["dark"] * 20


def test_images_of_16_bits_keep_their_shades():
    Path("shots").mkdir()
    shades = np.array([[0, 257, 20_000], [40_000, 257 * 254, 65_535]], np.uint16)
    Image.fromarray(shades).save("shots/deep.png")
    assert read(Path("shots"), labelled=False).pixels.tolist() == [[[0, 1, 78], [156, 254, 255]]]
    for kind in (np.int32, np.float32):
        Image.fromarray(shades.astype(kind)).save("shots/deep.tif")
        with pytest.raises(VclError, match=r"deep.tif .* 8 or 16 bits"):
            read(Path("shots"), labelled=False)


def test_the_same_inputs_with_other_labels_are_other_data(tmp_path):
    inputs, labels = tmp_path / "month.npy", tmp_path / "month-labels.npy"
    np.save(inputs, np.zeros((3, 2)))
    found = {fingerprint(inputs)}
    for values in ([0, 1, 0], [0, 1, 1]):
        np.save(labels, np.array(values))
        found.add(fingerprint(inputs))
    assert len(found) == 3


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "is empty"),
        ("a,churned\n1,yes\n2\n", "Line 3"),
        ("a,b\n1,2\n", "no column 'churned'"),
        ("a,churned\n1,yes\n2,\n", "Example 2"),
        ("churned\nyes\n", "no columns beside"),
        ("a,a,churned\n1,1,yes\n", "two columns named 'a'"),
    ],
)
def test_files_that_cannot_be_meant_are_refused(text, told):
    Path("x.csv").write_text(text)
    with pytest.raises(VclError, match=told):
        read(Path("x.csv"), "churned")


def test_categories_that_look_like_numbers_keep_their_texts():
    import pyarrow
    from pyarrow import parquet

    Path("a.csv").write_text("x,code,label\n1,01234,no\n2,1234,yes\n3,A1,no\n")
    Path("b.csv").write_text("x,code\n1,01234\n2, 1234\n3,\n")
    parquet.write_table(pyarrow.table({"x": [1.0, 2.0, 3.0], "code": ["01234", "1234", None]}), "c.parquet")
    parquet.write_table(pyarrow.table({"x": [1.0, 2.0], "code": [1234.0, np.nan]}), "d.parquet")
    kept = small(read(Path("a.csv")))
    assert kept.encoder.columns[1].categories == ("01234", "1234", "A1")
    for name in ("b.csv", "c.parquet"):
        batch = kept.read(Path(name), labelled=False)
        np.testing.assert_array_equal(kept.inputs(batch)[:, 1:], [[1, 0, 0], [0, 1, 0], [0, 0, 0]], name)
        assert kept.encoder.warnings(batch.columns) == []
    numbers = kept.read(Path("d.parquet"), labelled=False)
    np.testing.assert_array_equal(kept.inputs(numbers)[:, 1:], [[0, 1, 0], [0, 0, 0]])


def test_blank_labels_are_no_labels_when_predicting():
    Path("a.csv").write_text("x,churned\n1,\n2,NA\n")
    np.savez("a.npz", x=np.eye(2), y=np.full(2, np.nan))
    for name in ("a.csv", "a.npz"):
        assert read(Path(name), "churned", labelled=False).labels is None
        with pytest.raises(VclError, match=r"Example 1 .* has no label"):
            read(Path(name), "churned")
    Path("a.csv").write_text("x,churned\n1,yes\n2,\n")
    with pytest.raises(VclError, match=r"Example 2 .* has no label"):
        read(Path("a.csv"), "churned", labelled=False)


# The model


def test_a_model_taught_on_as_a_copy_equals_the_uninterrupted_one(tmp_path):
    kept = small(month(0))
    for number in range(4):
        if number == 2:
            kept.save(tmp_path / "copy.vcl")
        kept.learn(month(number))
    copy = KeptModel.load(tmp_path / "copy.vcl")
    for number in (2, 3):
        copy.learn(month(number))
    assert copy.fingerprint == kept.fingerprint
    assert [e["state_sha256"] for e in copy.log] == [e["state_sha256"] for e in kept.log]
    np.testing.assert_array_equal(copy.predict(month(9)).log_probs, kept.predict(month(9)).log_probs)
    for path in ("kept.vcl", "copy.vcl"):
        (kept if path == "kept.vcl" else copy).save(tmp_path / path)
    assert abs((tmp_path / "kept.vcl").stat().st_size - (tmp_path / "copy.vcl").stat().st_size) < 100


def test_the_log_has_what_an_auditor_asks_for():
    kept = small(month(0))
    first = kept.learn(month(0), test=0.2)
    second = kept.learn(month(1), test=0.2)
    assert (first["examples"], first["held_out"], first["accuracy_before"]) == (240, 60, None)
    assert first["new_classes"] == ["no", "yes"]
    assert second["new_classes"] == []
    assert second["accuracy_before"] > 0.8
    assert second["accuracy_after"] > 0.8
    drifted = kept.learn(month(2, shift=4.0), test=0.2, forgetting="drift")
    assert any(text.startswith("drift") for text in drifted["warnings"])
    assert drifted["accuracy_before"] < 0.7
    # As much as the likelihood fell, for that batch alone.
    ratio = np.exp(drifted["log_likelihood_before"] - second["log_likelihood_after"])
    assert drifted["forgetting"] == pytest.approx(1 - ratio, abs=1e-3)
    assert kept.model.learner.forgetting == 0


def test_forgetting_is_for_one_batch(monkeypatch):
    used = []

    def observe(snapshot, task, examples, fit):
        used.append(snapshot.learner.forgetting)
        return replace(snapshot, stages=snapshot.stages + 1)

    monkeypatch.setattr("vcl.learning.observe", observe)
    x, y = np.zeros((10, 2)), ["a", "b"] * 5
    model = Model("kronecker-vcl", hidden=(4,))
    for forgetting in (None, 0.5, None):
        model.learn(x, y, forgetting=forgetting)
    assert used == [0.0, 0.5, 0.0]
    with pytest.raises(VclError, match="must be between 0 and 1"):
        model.learn(x, y, forgetting=2.0)
    with pytest.raises(VclError, match="no setting `forgetting`"):
        Model("ewc", hidden=(4,)).learn(x, y, forgetting=0.5)


def test_labels_of_another_type_are_refused():
    kept = small(month(0))
    kept.learn(month(0))
    other = month(1)
    for label in (0, 1):
        with pytest.raises(VclError, match=f"the label {label}, .* another type"):
            kept.learn(Batch("b", other.columns, None, [label] * 300))


# Decisions


def simulated(examples: int, seed: int) -> tuple[HeldOut, np.ndarray, np.ndarray]:
    """A calibrated predictor of three classes."""
    rng = np.random.default_rng(seed)
    probabilities = rng.dirichlet([0.5, 0.5, 0.5], examples)
    labels = np.array([rng.choice(3, p=p) for p in probabilities])
    zeros = np.zeros(examples, np.float32)
    prediction = Prediction(np.log(probabilities).astype(np.float32), zeros, zeros)
    return HeldOut.of(prediction, labels), probabilities, labels


def test_rejecting_keeps_the_risk_and_sets_keep_the_coverage():
    held, _, _ = simulated(2000, 0)
    _, probabilities, labels = simulated(20_000, 1)
    answered = probabilities.max(axis=1) >= reject_below(held, 0.1)
    assert abs(np.mean(probabilities.argmax(axis=1)[answered] != labels[answered]) - 0.1) < 0.015
    assert answered.mean() > 0.25
    within = probabilities >= set_above(held, 0.9)
    assert abs(within[np.arange(len(labels)), labels].mean() - 0.9) < 0.015


def test_the_mean_realised_risk_is_the_one_asked_for():
    """Draws of 300 held-out examples; the risk that each threshold really has is known."""
    rng = np.random.default_rng(0)

    def odds(examples: int) -> np.ndarray:
        return np.abs(rng.normal(0, 2.2, examples))

    def error(odds: np.ndarray) -> np.ndarray:
        return 1 / (1 + np.exp(odds))

    everyone = np.sort(odds(200_000))[::-1]
    wrong = np.append(0.0, np.cumsum(error(everyone)))
    for risk in (0.05, 0.1, 0.15):
        answered = []
        for _ in range(300):
            drawn = odds(300)
            held = HeldOut(drawn, rng.random(300) > error(drawn), np.ones(300), np.zeros(300))
            answered.append(np.searchsorted(-everyone, -reject_below(held, risk), side="right"))
        # Without the error that is added it would be 0.9, 0.5 and 0.4 points more.
        assert abs(wrong[answered].sum() / np.sum(answered) - risk) < 0.0045, risk


def test_equal_confidences_are_answered_all_or_none():
    correct = np.array([True] * 20 + [False] * 20)
    held = HeldOut(np.repeat([0.9, 0.7], 20), np.roll(correct, -10), np.ones(40), np.zeros(40))
    assert reject_below(held, 0.4) == np.inf
    assert reject_below(replace(held, correct=correct), 0.4) == 0.9


def test_thresholds_at_the_edges():
    held, _, _ = simulated(40, 0)
    assert set_above(held, 0.99) == 0.0
    assert set_above(held, 0.5) == np.sort(held.label_probability)[19]
    wrong = HeldOut(np.array([0.9]), np.array([False]), np.array([0.1]), np.array([0.0]))
    assert reject_below(wrong, 0.5) == np.inf
    with pytest.raises(VclError, match="between 0 and 1"):
        reject_below(held, 1.5)


def test_thresholds_are_the_same_after_saving():
    """Of a model that is very sure of itself, most of all."""
    held, _, _ = simulated(40, 0)
    sure = replace(held, label_probability=np.full(40, np.float32(0.9999996), np.float64))
    loaded = HeldOut.from_json(json.loads(json.dumps(sure.to_json())))
    assert set_above(loaded, 0.9) == set_above(sure, 0.9) < 1
    for name in ("confidence", "correct", "label_probability", "epistemic"):
        np.testing.assert_array_equal(getattr(loaded, name), getattr(sure, name))


def test_what_is_unlike_the_training_data_is_noticed():
    kept = small(month(0))
    kept.learn(month(0, 1000), test=0.3)
    near, far = month(1), month(2)
    far.columns["use"][:200] = 9.0
    assert kept.unfamiliar(near, kept.predict(near)).mean() < 0.05
    which = kept.unfamiliar(far, kept.predict(far))
    assert which[:200].all()
    assert which[200:].mean() < 0.05
    held = HeldOut(np.ones(50), np.ones(50, bool), np.ones(50), np.linspace(0, 1, 50))
    assert unfamiliar(held, np.array([0.5, 0.98, 1.1])).tolist() == [False, False, True]
    assert unfamiliar_warning(np.arange(100) < 10).startswith("10 of 100")
    assert unfamiliar_warning(np.arange(100) < 4) == ""


def test_drift_is_a_fall_of_the_likelihood_not_a_rise():
    rng = np.random.default_rng(0)
    good, bad = -rng.exponential(0.2, 500), -rng.exponential(2.0, 500)
    assert drift(good, bad)[0]
    assert not drift(good, -rng.exponential(0.2, 500))[0]
    assert not drift(bad, good)[0]


# Commands


def test_from_a_csv_to_decisions(capsys):
    for number in (0, 1):
        write(f"{number}.csv", month(number, 600))
    vcl("learn", "m.vcl", "0.csv", "--label", "churned", "--test", "0.2", *SMALL)
    vcl("learn", "m.vcl", "1.csv", "--test", "0.2", "--quiet")
    vcl("show", "m.vcl")
    shown = capsys.readouterr().out
    assert "0.csv" in shown
    assert "960 examples learnt in 2 batches; 0 kept" in shown
    vcl("predict", "m.vcl", "0.csv", "--reject", "0.02", "--coverage", "0.9", "--output", "p.csv")
    told = capsys.readouterr().err
    with Path("p.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 600
    answered = [row for row in rows if row["decision"] != "don't know"]
    held = KeptModel.load(Path("m.vcl")).held_out["default"]
    above = held.confidence >= reject_below(held, 0.02)
    assert f"Answered: {len(answered)} of 600" in told
    assert (
        f"Of the 120 held-out examples, {above.sum()} would be answered, {np.sum(above & ~held.correct)} of them"
        in told
    )
    vcl("predict", "m.vcl", "0.csv", "--reject", "0", "--output", "p0.csv")
    assert "Answered: 0 of 600, since no threshold" in capsys.readouterr().err
    truth = month(0, 600).labels
    right = [row["decision"] == label for row, label in zip(rows, truth, strict=True) if row in answered]
    assert np.mean(right) > 0.9
    assert np.mean([label in row["set"].split("|") for row, label in zip(rows, truth, strict=True)]) > 0.85
    assert float(rows[0]["p(yes)"]) + float(rows[0]["p(no)"]) == pytest.approx(1, abs=1e-5)
    vcl("report", "m.vcl", "--out", "r.html")
    page = Path("r.html").read_text()
    assert "Reliability" in page
    assert "1.csv" in page
    vcl("export", "m.vcl", "--format", "card")
    card = Path("m.md").read_text()
    assert "| 2 |" in card
    assert "`town=Rom`" in card
    assert not Path(".m.vcl.checkpoints").exists()


def test_tasks_have_heads_of_their_own_unless_they_share_one(capsys):
    write("a.csv", month(0))
    vcl("learn", "apart.vcl", "a.csv", "--label", "churned", "--task", "one", *SMALL)
    vcl("learn", "apart.vcl", "a.csv", "--task", "two", "--quiet")
    assert "Say which one" in refused(capsys, "predict", "apart.vcl", "a.csv")
    vcl("learn", "shared.vcl", "a.csv", "--label", "churned", "--task", "one", "--shared-head", *SMALL)
    vcl("learn", "shared.vcl", "a.csv", "--task", "two", "--quiet")
    vcl("predict", "shared.vcl", "a.csv")


def test_mistakes_are_explained(capsys):
    write("a.csv", month(0))
    assert "no file or folder none.csv" in refused(capsys, "learn", "m.vcl", "none.csv")
    assert "--label COLUMN" in refused(capsys, "learn", "m.vcl", "a.csv")
    assert not Path("m.vcl").exists()
    vcl("learn", "m.vcl", "a.csv", "--label", "churned", "--test", "0", *SMALL)
    assert "decided when a model is made" in refused(capsys, "learn", "m.vcl", "a.csv", "--hidden", "9")
    assert "larger --test" in refused(capsys, "predict", "m.vcl", "a.csv", "--reject", "0.1")
    write("b.csv", month(0), names=("use", "town"))
    assert "'age' is missing" in refused(capsys, "predict", "m.vcl", "b.csv")
    assert "after the model" in refused(capsys, "predict", "m.vcl")
    assert "part of a batch" in refused(capsys, "learn", "m.vcl", "a.csv", "--test", "1")


def test_numbers_in_csv_are_short_and_text_is_whole():
    table = as_csv({"class": np.array(["a,b"]), "p": np.array([1 / 3]), "unfamiliar": np.array([True])})
    assert table == 'class,p,unfamiliar\n"a,b",0.333333,True\n'


# ONNX


@pytest.mark.parametrize(
    ("method", "settings"), [("vcl", {}), ("vcl", {"last_hidden": "linear"}), ("kronecker-vcl", {}), ("ewc", {})]
)
def test_onnx_gives_the_same_answers(method, settings):
    runtime = pytest.importorskip("onnxruntime")
    kept = small(month(0), method=method, **settings)
    kept.learn(month(0))
    batch = month(1, 70)
    session = runtime.InferenceSession(export_onnx(kept.model), providers=["CPUExecutionProvider"])
    names = ["log_probabilities", "total_entropy", "aleatoric_entropy", "epistemic_entropy"]
    found = session.run(names, {"inputs": kept.inputs(batch)})
    expected = kept.predict(batch)
    np.testing.assert_allclose(np.exp(found[0]), expected.probabilities, atol=1e-5)
    ours = (expected.total_entropy, expected.aleatoric_entropy, expected.epistemic_entropy)
    for theirs, entropy in zip(found[1:], ours, strict=True):
        np.testing.assert_allclose(theirs, entropy, atol=1e-5)


def test_onnx_of_pixels_and_of_one_task_among_several():
    runtime = pytest.importorskip("onnxruntime")
    pixels = np.random.default_rng(0).integers(0, 256, (60, 4, 4)).astype(np.uint8)
    several = ["a", "b", "c"] * 20
    kept = small(Batch("i", None, pixels, several))
    kept.learn(Batch("i", None, pixels, several), "three")
    kept.learn(Batch("j", None, pixels, ["p", "q"] * 30), "two")
    session = runtime.InferenceSession(export_onnx(kept.model, "two"), providers=["CPUExecutionProvider"])
    found = np.exp(session.run(["log_probabilities"], {"inputs": pixels.reshape(60, -1)})[0])
    expected = kept.predict(Batch("j", None, pixels, None), "two").probabilities
    np.testing.assert_allclose(found, expected[:, [3, 4]], atol=1e-5)
