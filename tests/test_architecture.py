"""Imports point one way: core <- numerics <- methods; experiment knows no method; report reads the store."""

import ast
from pathlib import Path

import pytest

import vcl

PACKAGE = Path(vcl.__file__).parent

NUMERICS = {"core", "errors", "gaussian", "networks", "curvature", "memory", "training", "vae"}
ALLOWED = {
    "errors": set(),
    "files": set(),
    "core": {"errors"},
    "gaussian": set(),
    "networks": {"core", "gaussian"},
    "training": {"core", "errors"},
    "curvature": {"networks", "training"},
    "memory": {"core", "networks", "training"},
    "vae": {"core", "gaussian", "networks"},
    "methods": NUMERICS | {"methods"},
    "data": {"data", "errors", "files"},
    "benchmarks": {"benchmarks", "core", "data", "errors"},
    "evaluation": {"core"},
    "store": {"errors", "files"},
    "experiment": {"benchmarks", "core", "evaluation", "store", "training"},
    "analysis": NUMERICS | {"analysis", "benchmarks", "evaluation", "experiment", "runs", "store"},
    "report": {"report", "store", "errors", "files", "analysis"},
}


def imports(file: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "vcl":
            parts = node.module.split(".")[1:]
            found |= {parts[0]} if parts else {alias.name for alias in node.names}
        if isinstance(node, ast.Import):
            found |= {a.name.split(".")[1] for a in node.names if a.name.startswith("vcl.")}
    return found


@pytest.mark.parametrize("part", ALLOWED)
def test_imports_point_one_way(part):
    single = PACKAGE / f"{part}.py"
    files = [single] if single.exists() else list((PACKAGE / part).rglob("*.py"))
    assert files
    for file in files:
        assert imports(file) <= ALLOWED[part], file.name
