"""Imports point one way, over every package: vocabulary <- numerics <- methods <- runs <- what users see."""

import ast
import importlib
from pathlib import Path

import pytest

import vcl

PACKAGE = Path(vcl.__file__).parent
BENCH = PACKAGE.parent / "bench"

NUMERICS = {"core", "errors", "nets", "posteriors", "curvature", "memory", "training", "vae", "noise"}
STORED = {"checkpoints", "files", "learning", "evaluation", "benchmarks", "methods", "runs"}
ALLOWED = {
    "__init__": {"analysis", "benchmarks", "errors", "methods", "model", "nets", "posteriors", "runs", "sklearn"},
    "__main__": {"cli"},
    "errors": set(),
    "files": {"errors"},
    "core": {"errors"},
    "nets": {"core", "errors", "nets"},
    "noise": set(),
    "posteriors": {"nets", "noise", "posteriors"},
    "training": {"core", "errors"},
    "curvature": {"nets", "posteriors", "training"},
    "memory": {"core", "errors", "nets", "training"},
    "vae": {"core", "posteriors", "nets"},
    "methods": NUMERICS | {"methods"},
    "data": {"data", "errors", "files"},
    "benchmarks": {"benchmarks", "core", "data", "errors"},
    "evaluation": {"core", "errors"},
    "checkpoints": {"errors"},
    "inputs": {"core", "errors", "files"},
    "learning": {"core", "errors", "evaluation", "training"},
    "runs": {"core", "errors", "nets", "training", "runs"} | STORED,
    "progress": {"core", "errors", "runs"},
    "recording": {"core", "errors", "progress", "training", "runs", "checkpoints", "files", "learning"},
    "keeping": {"checkpoints", "core", "errors", "inputs", "runs"},
    "model": {
        "core",
        "errors",
        "inputs",
        "keeping",
        "recording",
        "checkpoints",
        "files",
        "learning",
        "evaluation",
        "methods",
        "runs",
    },
    "regression": {"core", "errors", "evaluation", "inputs", "learning", "methods", "model"},
    "sklearn": {"errors", "evaluation", "inputs", "methods", "model", "regression"},
    "kept": {"checkpoints", "core", "errors", "evaluation", "files", "inputs", "keeping", "kept", "learning"}
    | {"methods", "model", "noise", "nets", "posteriors"},
    "analysis": NUMERICS | STORED | {"analysis", "data"},
    "report": {"report", "analysis", "benchmarks", "core", "errors", "evaluation", "files", "kept", "posteriors"}
    | {"runs"},
    "cli": {
        "evaluation",
        "learning",
        "analysis",
        "benchmarks",
        "cli",
        "core",
        "data",
        "errors",
        "files",
        "inputs",
        "kept",
        "methods",
        "nets",
        "progress",
        "report",
        "runs",
    },
}
CROWDED = 460


def modules() -> set[str]:
    """Every module and package directly inside vcl."""
    return {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}


def imports(file: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "vcl":
            parts = node.module.split(".")[1:]
            found |= {parts[0]} if parts else {alias.name for alias in node.names}
        if isinstance(node, ast.Import):
            found |= {a.name.split(".")[1] for a in node.names if a.name.startswith("vcl.")}
    return found


def test_every_module_has_its_place():
    assert modules() == set(ALLOWED)


@pytest.mark.parametrize("part", ALLOWED)
def test_imports_point_one_way(part):
    single = PACKAGE / f"{part}.py"
    files = [single] if single.exists() else list((PACKAGE / part).rglob("*.py"))
    assert files
    for file in files:
        assert imports(file) <= ALLOWED[part], file.name


def test_no_module_is_crowded():
    sizes = {str(path.relative_to(PACKAGE)): len(path.read_text().splitlines()) for path in PACKAGE.rglob("*.py")}
    assert {name: size for name, size in sizes.items() if size > CROWDED} == {}


def test_the_public_names_are_shown_and_are_there():
    assert set(dir(vcl)) == set(vcl.__all__)
    for name in vcl.__all__:
        assert getattr(vcl, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = vcl.nothing


PEERS = ("peers_avalanche", "peers_laplace", "peers_torch", "torch_operators")
"""They run in an environment of their own, with PyTorch."""


@pytest.mark.parametrize("script", [p.stem for p in sorted(BENCH.glob("*.py")) if p.stem not in PEERS])
def test_benchmarks_use_names_that_exist(script):
    importlib.import_module(script)
