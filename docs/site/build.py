"""Build the documentation site without a network: the pages of docs/, every command, and the API from docstrings.

.venv/bin/python docs/site/build.py     # writes build/site/index.html
"""

import inspect
import io
import re
import shutil
from pathlib import Path
from typing import Any

from mkdocs.commands.build import build
from mkdocs.config import load_config
from rich.console import Console

import vcl
from vcl.cli.app import COMMANDS, make_app

ROOT = Path(__file__).parent.parent.parent
PAGES, SITE = ROOT / "build" / "pages", ROOT / "build" / "site"
NAV = [
    {"Start": "index.md"},
    {"Practitioners": "practitioners.md"},
    {"Models": "models.md"},
    {
        "Researchers": [
            {"Recipes": "recipes.md"},
            {"Methods": "methods.md"},
            {"Comparison": "comparison.md"},
            {"The paper, row by row": "reproduction.md"},
            {"Understanding VCL": "understanding.md"},
            {"Performance": "performance.md"},
            {"Adding a method": "adding-a-method.md"},
            {"Networks and posteriors": "networks.md"},
            {"Architecture": "architecture.md"},
        ]
    },
    {"Reference": [{"Commands": "commands.md"}, {"API": "api.md"}, {"Changes": "changes.md"}]},
]


def commands() -> str:
    """The help of every command, as the terminal shows it."""
    parts = ["# Commands"]
    for _, name, _ in COMMANDS:
        tokens = [name] if name != "run" else [name, "split-mnist"]
        text = io.StringIO()
        make_app(tokens).help_print([name], console=Console(file=text, width=100, highlight=False))
        parts.append(f"## vcl {name}\n\n```text\n{text.getvalue().rstrip()}\n```")
    return "\n\n".join(parts) + "\n"


def api() -> str:
    """Everything public, with its signature and its docstring."""
    parts = ["# API"]
    for name in sorted(vcl.__all__, key=str.lower):
        thing = getattr(vcl, name)
        if not (inspect.isclass(thing) or inspect.isfunction(thing)):
            continue
        parts.append(f"## vcl.{name}\n\n{described(thing, name)}")
        if inspect.isclass(thing):
            methods = [
                (n, m)
                for n, m in inspect.getmembers(thing)
                if callable(m) and not n.startswith("_") and n in vars(thing)
            ]
            parts += [f"### vcl.{name}.{n}\n\n{described(m, n)}" for n, m in methods]
    return "\n\n".join(parts) + "\n"


def described(thing: Any, name: str) -> str:
    try:
        signature = str(inspect.signature(thing))
    except (TypeError, ValueError):
        signature = ""
    text = inspect.getdoc(thing) or ""
    return f"```python\n{name}{signature}\n```\n\n```text\n{text}\n```"


def inside(text: str) -> str:
    """A page without links to what is not on the site; pictures from results/ are brought along."""
    for place in re.findall(r"!\[[^\]]*\]\(\.\./([^)]+)\)", text):
        shutil.copy(ROOT / place, PAGES / "images")
        text = text.replace(f"](../{place})", f"](images/{Path(place).name})")
    return re.sub(r"\[([^\]]+)\]\(\.\./[^)]*\)", r"\1", text).replace("](start.md", "](index.md")


def main() -> None:
    shutil.rmtree(PAGES, ignore_errors=True)
    shutil.copytree(ROOT / "docs", PAGES, ignore=shutil.ignore_patterns("site"))
    (PAGES / "start.md").rename(PAGES / "index.md")
    (PAGES / "changes.md").write_text((ROOT / "CHANGELOG.md").read_text())
    (PAGES / "commands.md").write_text(commands())
    (PAGES / "api.md").write_text(api())
    for page in PAGES.glob("*.md"):
        page.write_text(inside(page.read_text()))
    config = load_config(
        config_file=str(Path(__file__).with_name("mkdocs.yml")), docs_dir=str(PAGES), site_dir=str(SITE), nav=NAV
    )
    build(config)
    print(SITE / "index.html")


if __name__ == "__main__":
    main()
