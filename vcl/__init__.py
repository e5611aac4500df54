"""Variational continual learning.

>>> import vcl
>>> result = vcl.run(vcl.configure("split-digits", epochs=20))
>>> result["average_accuracy"]
"""

from importlib import import_module
from importlib.metadata import version
from typing import Any

__version__ = version("vcl")

__all__ = [
    "METHODS",
    "STREAMS",
    "VCL",
    "RunFolder",
    "StreamOptions",
    "VclError",
    "build",
    "configure",
    "from_arrays",
    "hold_out",
    "learn",
    "online",
    "predict",
    "run",
]

# Loaded when first used, so that `vcl --help` need not wait for jax.
_HOMES = ("errors", "benchmarks", "benchmarks.streams", "store", "methods", "methods.vcl", "experiment", "runs")


def __getattr__(name: str) -> Any:
    if name in __all__:
        for home in _HOMES:
            module = import_module(f"vcl.{home}")
            if hasattr(module, name):
                return getattr(module, name)
    raise AttributeError(f"module 'vcl' has no attribute {name!r}")
