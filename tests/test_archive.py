"""Results that are kept as JSON: which count as run, and that nothing of them is lost."""

import json
from dataclasses import replace

import pytest

import vcl
from vcl.errors import VclError
from vcl.runs.archive import find, keep, kept_results, same

CONFIG = vcl.configure("split-digits", threads=1, hidden=(5,), epochs=2, stream=vcl.StreamOptions(num_tasks=2))


def result(config=CONFIG):
    """As much of a result as the archive looks at."""
    return {
        "benchmark": config.benchmark,
        "method": config.method,
        "seed": config.seed,
        "config": config.settings,
        "run": config.name,
        "accuracy_matrix": [[1 / 3, None], [0.5, 2 / 3]],
        "average_accuracy": 7 / 12,
        "scores": [[{"accuracy": 1 / 3, "log_likelihood": -1 / 3}]],
    }


def test_what_makes_results_the_same():
    found = result()
    assert same(CONFIG, found)
    assert same(replace(CONFIG, threads=7), found)
    other_noise = replace(CONFIG, learner=replace(CONFIG.learner, noise="threefry"))
    assert not same(other_noise, found)
    assert same(other_noise, found, without_effect=("noise",))
    assert not same(replace(CONFIG, seed=1), found)
    assert not same(replace(CONFIG, learner=replace(CONFIG.learner, epochs=3)), found)
    assert not same(replace(CONFIG, stream=vcl.StreamOptions(num_tasks=3)), found)
    few = replace(CONFIG, stream=replace(CONFIG.stream, examples=100))
    assert not same(few, found)
    assert not same(CONFIG, result(few))
    assert not same(CONFIG, {**found, "config": {**CONFIG.settings, "stream": {"of_another_version": 1}}})
    assert not same(CONFIG, {**found, "config": {**CONFIG.settings, "learner": {"of_another_version": 1}}})


def test_an_option_that_came_later_leaves_the_names_of_other_runs_alone():
    assert "examples" not in CONFIG.settings["stream"]
    few = replace(CONFIG, stream=replace(CONFIG.stream, examples=100))
    assert few.settings["stream"]["examples"] == 100
    assert few.name != CONFIG.name


def test_what_is_kept_is_found_again_alone_in_a_list_or_as_show_prints_it(tmp_path):
    keep(result(), tmp_path / "single")
    (tmp_path / "list.json").write_text(json.dumps([result(replace(CONFIG, seed=1))]))
    (tmp_path / "shown.json").write_text(json.dumps({"mean": 1, "runs": [result(replace(CONFIG, seed=2))]}))
    others = [{"something": "else"}, 3, {**result(), "config": None}, {**result(), "config": {"stream": []}}]
    (tmp_path / "other.json").write_text(json.dumps(others))
    kept = kept_results(tmp_path)
    assert sorted(one["seed"] for one in kept) == [0, 1, 2]
    again = find(CONFIG, kept)
    assert again == {**result(), "scores": [[{"accuracy": 0.333333, "log_likelihood": -0.333333}]]}
    assert find(replace(CONFIG, seed=3), kept) is None


def test_a_result_that_is_kept_already_stays(tmp_path):
    assert keep({**result(), "state_sha256": "a"}, tmp_path) is None
    assert keep({**result(), "state_sha256": "a", "train_seconds": 1.0}, tmp_path) is None
    other = keep({**result(), "state_sha256": "b"}, tmp_path)
    assert other == tmp_path / f"{CONFIG.name}.json"
    (there,) = kept_results(tmp_path)
    assert there["state_sha256"] == "a"
    assert "train_seconds" not in there


@pytest.mark.parametrize("content", [b"{", b"\xff\xfe", b"[" * 100_000])
def test_a_file_that_is_not_json_is_named(tmp_path, content):
    (tmp_path / "broken.json").write_bytes(content)
    with pytest.raises(VclError, match=r"broken\.json cannot be read as JSON"):
        kept_results(tmp_path)
