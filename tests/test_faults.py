"""The short version of bench/faults.py: no fault changes an answer in silence."""

import random

import faults
import pytest


@pytest.fixture
def scratch(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NPROC", "1")
    return tmp_path


def test_a_run_killed_inside_its_writes_resumes_to_the_bit(scratch):
    counts = faults.writes(["finetune"], scratch, stride=5)
    assert sum(counts.values()) >= 12


def test_a_full_disk_loses_nothing(scratch):
    assert sum(faults.writes(["finetune"], scratch, stride=5, points=("full",)).values()) >= 3


def test_bit_flips_are_told_or_harmless(scratch):
    counts = faults.flips(80, random.Random(1), scratch)
    assert counts["refused"] > 10


def test_damaged_files_are_told_or_harmless(scratch):
    counts = faults.damage(80, random.Random(1), scratch)
    assert counts["refused"] > 10


def test_odd_command_lines_are_refused_in_one_paragraph(scratch):
    counts = faults.arguments(60, random.Random(2), scratch)
    assert sum(number for what, number in counts.items() if what.endswith("refused")) > 30


def test_neither_the_age_of_files_nor_the_clock_matters(scratch):
    assert faults.clocks(2, random.Random(1), scratch)["jumps of the clock"] == 2


def test_a_disk_that_fails_is_a_fault_that_shows(scratch, monkeypatch):
    """The tool itself: a resumed run with another result must be noticed."""
    monkeypatch.setattr(faults, "same", lambda one, other: False)
    with pytest.raises(faults.Wrong, match="another result"):
        faults.writes(["finetune"], scratch, stride=100, points=("before",))
