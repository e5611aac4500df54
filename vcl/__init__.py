"""Variational continual learning.

>>> import vcl
>>> result = vcl.run(vcl.configure("split-digits", epochs=20))
>>> result["average_accuracy"] > 0.9
True
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vcl import analysis, nets, posteriors
    from vcl.benchmarks import STREAMS, StreamOptions, build
    from vcl.benchmarks.streams import from_arrays, hold_out, limited, online
    from vcl.errors import VclError
    from vcl.methods import METHODS
    from vcl.methods.vcl import VCL
    from vcl.model import Model
    from vcl.nets import MLP, ConvNet, Network
    from vcl.runs import Result, RunFolder, StoredRun, configure, extend, learn, predict, resume, run
    from vcl.sklearn import VCLClassifier, VCLRegressor

    __version__: str

# Loaded when first used, so that `import vcl` and `vcl --help` need not wait for jax.
_HOMES = {
    "METHODS": "methods",
    "MLP": "nets",
    "STREAMS": "benchmarks",
    "VCL": "methods.vcl",
    "VCLClassifier": "sklearn",
    "VCLRegressor": "sklearn",
    "ConvNet": "nets",
    "Model": "model",
    "Network": "nets",
    "Result": "runs",
    "RunFolder": "runs",
    "StoredRun": "runs",
    "StreamOptions": "benchmarks",
    "VclError": "errors",
    "analysis": "",
    "build": "benchmarks",
    "configure": "runs",
    "extend": "runs",
    "from_arrays": "benchmarks.streams",
    "hold_out": "benchmarks.streams",
    "learn": "runs",
    "limited": "benchmarks.streams",
    "nets": "",
    "online": "benchmarks.streams",
    "posteriors": "",
    "predict": "runs",
    "resume": "runs",
    "run": "runs",
}

__all__ = [
    "METHODS",
    "MLP",
    "STREAMS",
    "VCL",
    "ConvNet",
    "Model",
    "Network",
    "Result",
    "RunFolder",
    "StoredRun",
    "StreamOptions",
    "VCLClassifier",
    "VCLRegressor",
    "VclError",
    "__version__",
    "analysis",
    "build",
    "configure",
    "extend",
    "from_arrays",
    "hold_out",
    "learn",
    "limited",
    "nets",
    "online",
    "posteriors",
    "predict",
    "resume",
    "run",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("vcl")
    if name not in _HOMES:
        raise AttributeError(f"module 'vcl' has no attribute {name!r}")
    home = _HOMES[name]
    return getattr(import_module(f"vcl.{home}"), name) if home else import_module(f"vcl.{name}")


def __dir__() -> list[str]:
    return sorted(__all__)
