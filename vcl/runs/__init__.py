"""Runs: a learner on a benchmark with a seed, in a folder of its own. A killed run resumes, to the bit."""

from vcl.benchmarks import StreamOptions
from vcl.runs.config import (
    RunConfig,
    available_threads,
    configure,
    from_record,
    spec_from_record,
    unused_root,
)
from vcl.runs.derived import extend
from vcl.runs.execute import Tracing, prepare_jax, resume, run
from vcl.runs.fold import Interrupted, learn
from vcl.runs.folder import RunFolder
from vcl.runs.results import Record, Result
from vcl.runs.stored import StoredRun, as_rows, predict

__all__ = [
    "Interrupted",
    "Record",
    "Result",
    "RunConfig",
    "RunFolder",
    "StoredRun",
    "StreamOptions",
    "Tracing",
    "as_rows",
    "available_threads",
    "configure",
    "extend",
    "from_record",
    "learn",
    "predict",
    "prepare_jax",
    "resume",
    "run",
    "spec_from_record",
    "unused_root",
]
