"""Kill runs with SIGKILL at random moments, resume them, and compare the end with an undisturbed run, to the bit.

    .venv/bin/python bench/kill_resume.py split-digits --cycles 20
    .venv/bin/python bench/kill_resume.py split-mnist --cycles 1 -- --epochs 10

What stands behind `--` goes to `vcl run`.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

VCL = [sys.executable, "-m", "vcl"]
SAME = ("accuracy_matrix", "scores", "average_accuracy", "steps", "state_sha256")


def command(benchmark: str, out: Path, flags: list[str]) -> list[str]:
    return [*VCL, "run", benchmark, "--out", str(out), "--checkpoint-seconds", "0.1", "--quiet", *flags]


def undisturbed(benchmark: str, out: Path, flags: list[str]) -> tuple[dict[str, Any], float]:
    """The result, and how long it takes once everything is compiled."""
    subprocess.run(command(benchmark, out / "warm", flags), check=True, stdout=subprocess.DEVNULL)
    began = time.monotonic()
    subprocess.run(command(benchmark, out / "whole", flags), check=True, stdout=subprocess.DEVNULL)
    seconds = time.monotonic() - began
    return json.loads(next((out / "whole").glob("*/result.json")).read_text()), seconds


def disturbed(
    benchmark: str, out: Path, flags: list[str], seconds: float, rng: random.Random
) -> tuple[dict[str, Any], int]:
    """The result of a run that is killed and resumed until it is through, and how often it was killed."""
    kills, attempt, words = 0, 0, command(benchmark, out, flags)
    while True:
        process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            code = process.wait(timeout=rng.uniform(0.1, 1.0) * seconds if kills < 3 else None)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            kills += 1
            if folders := list(out.glob("*/run.json")):
                words = [*VCL, "resume", str(folders[0].parent), "--checkpoint-seconds", "0.1", "--quiet"]
            continue
        if code != 0:
            raise SystemExit(f"{' '.join(words)} ended with code {code}")
        if kills == 0:
            # It was through before it could be killed: that shows nothing, so try again, elsewhere and sooner.
            attempt, seconds = attempt + 1, seconds / 2
            out = out.with_name(f"{out.name}-{attempt}")
            words = command(benchmark, out, flags)
            continue
        return json.loads(next(out.glob("*/result.json")).read_text()), kills


def differences(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    return [key for key in SAME if one[key] != other[key]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("benchmark")
    parser.add_argument("--cycles", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0, help="of the moments at which runs are killed")
    parser.add_argument("flags", nargs="*")
    chosen = parser.parse_args()
    rng = random.Random(chosen.seed)
    with tempfile.TemporaryDirectory() as scratch:
        expected, seconds = undisturbed(chosen.benchmark, Path(scratch), chosen.flags)
        print(f"undisturbed: {seconds:.1f} s, state {expected['state_sha256'][:16]}", flush=True)
        different = 0
        for cycle in range(chosen.cycles):
            result, kills = disturbed(chosen.benchmark, Path(scratch) / f"{cycle}", chosen.flags, seconds, rng)
            wrong = differences(expected, result)
            different += bool(wrong)
            print(
                f"cycle {cycle + 1}: killed {kills} times, {'DIFFERENT: ' + ', '.join(wrong) if wrong else 'equal'}",
                flush=True,
            )
    print(f"{chosen.cycles - different} of {chosen.cycles} equal to the bit")
    sys.exit(different > 0)


if __name__ == "__main__":
    main()
