"""Memory and memory mappings of `vcl.run`, repeated in one process with ever other settings, so that each compiles.

    .venv/bin/python bench/repeats.py --count 300

Ends with code 1 where mappings come near the operating system's limit of 65530, or memory still grows at the end.
"""

import argparse
import ctypes
import resource
import sys
import tempfile
from pathlib import Path

import jax

import vcl
from vcl import runs

MOST_MAPPINGS = 40_000
MOST_GROWTH = 1.25
"""Of the largest memory in the last third of the repetitions, beside that in the second."""


def mappings() -> int:
    return Path("/proc/self/maps").read_bytes().count(b"\n")


def resident() -> float:
    """MiB of memory that this process has."""
    ctypes.CDLL(None).malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=300)
    count = parser.parse_args().count
    runs.prepare_jax(1)
    # Small programs too are kept on disk, so that repeating this command is cheap; each is loaded and mapped anew.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    seen: list[tuple[int, float]] = []
    with tempfile.TemporaryDirectory() as scratch:
        for number in range(count):
            settings = {"hidden": (4,), "epochs": 1, "learning_rate": 0.001 * (1 + number)}
            config = vcl.configure(
                "split-digits", "finetune", threads=1, stream=vcl.StreamOptions(num_tasks=1), **settings
            )
            vcl.run(config, Path(scratch))
            seen.append((mappings(), resident()))
            if number % 10 == 9:
                print(f"{number + 1:4d} runs: {seen[-1][0]:6d} mappings, {seen[-1][1]:5.0f} MiB", flush=True)
    third = max(1, count // 3)
    middle, last = (max(m for _, m in part) for part in (seen[third : 2 * third] or seen, seen[-third:]))
    most = max(number for number, _ in seen)
    print(f"{count} runs: at most {most} mappings; {middle:.0f} MiB in the second third, {last:.0f} MiB in the last")
    sys.exit(most > MOST_MAPPINGS or last > MOST_GROWTH * middle)


if __name__ == "__main__":
    main()
