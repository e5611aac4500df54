"""Build the documentation site without a network: the pages of docs/, every command, and the API from docstrings.

.venv/bin/python docs/site/build.py     # writes build/site/index.html
"""

import dataclasses
import inspect
import logging
import re
import shutil
from pathlib import Path
from typing import Any, get_args, get_type_hints

from mkdocs.commands.build import build
from mkdocs.config import load_config

import vcl
from vcl.benchmarks import settings_for
from vcl.cli.app import make_app
from vcl.cli.options import sentence_case, shown
from vcl.methods import METHODS

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
PAGES, SITE = ROOT / "build" / "pages", ROOT / "build" / "site"
NAV = [
    {"Start": "index.md"},
    {"Tutorial": "tutorial.md"},
    {
        "Your own data": [
            {"Guide for practitioners": "practitioners.md"},
            {"Models": "models.md"},
        ]
    },
    {
        "Research": [
            {"Guide for researchers": "researchers.md"},
            {"Recipes": "recipes.md"},
            {"Methods": "methods.md"},
            {"Comparison": "comparison.md"},
            {"The paper, row by row": "reproduction.md"},
            {"Looking inside": "understanding.md"},
            {"Adding a method": "adding-a-method.md"},
            {"Networks and posteriors": "networks.md"},
        ]
    },
    {
        "Running it": [
            {"Many runs and clusters": "cluster.md"},
            {"Durability": "durability.md"},
            {"Performance": "performance.md"},
            {"What it looks like": "screenshots.md"},
        ]
    },
    {
        "Reference": [
            {"Commands": "commands.md"},
            {"Settings of each method": "settings.md"},
            {"API": "api.md"},
            {"Architecture": "architecture.md"},
            {"Changes": "changes.md"},
        ]
    },
]


# Commands and settings


def commands() -> str:
    """Every command with all its options, from the command line itself; its own list of them stays, once."""
    text = make_app(["run", "split-mnist"]).generate_docs(output_format="markdown")
    text = re.sub(r"## Table of Contents\n.*?(?=\*\*Commands\*\*)", "", text, flags=re.DOTALL)
    note = "The settings of other methods than `vcl` are flags too: [settings of each method](settings.md).\n\n"
    text = text.replace("## vcl learn\n", f"{note}## vcl learn\n", 1).replace(" *[default: False]*", "")
    return text.replace("# vcl\n", "# Commands\n", 1)


def settings() -> str:
    """The settings of every method, with their defaults on split MNIST."""
    parts = [
        "# Settings of each method",
        "Flags of `vcl run BENCHMARK --method NAME`, and keywords in Python (`--batch-size` is `batch_size`). The "
        "values are those of the recipe `fast` for split MNIST; `vcl run BENCHMARK --method NAME --help` shows "
        "those of any benchmark.",
    ]
    for name, kind in METHODS.items():
        values = {field.name: field.default for field in dataclasses.fields(kind)}
        values |= settings_for(kind.recipes["fast"], "split-mnist")
        rows = ["| flag | what it is | value |", "|---|---|---|"]
        for setting, hint in get_type_hints(kind, include_extras=True).items():
            if hasattr(hint, "__metadata__"):
                told = sentence_case(get_args(hint)[1]).replace("|", r"\|")
                rows.append(f"| `--{setting.replace('_', '-')}` | {told} | {shown(values.get(setting))} |")
        first = (inspect.getdoc(kind) or "").split("\n\n")[0].replace("\n", " ")
        parts.append(f"## {name}\n\n{first}\n\n" + "\n".join(rows))
    return "\n\n".join(parts) + "\n"


# API


def api() -> str:
    """Everything public, with its signature and its docstring."""
    parts = ["# API", "Names in `vcl`, then those of its public modules. Generated from the docstrings."]
    modules = [(name, thing) for name in sorted(vcl.__all__) if inspect.ismodule(thing := getattr(vcl, name))]
    parts += [entry(f"vcl.{name}", getattr(vcl, name)) for name in sorted(vcl.__all__, key=str.lower)]
    for home, module in modules:
        parts.append(f"## Module vcl.{home}\n\n{as_markdown(inspect.getdoc(module) or '')}")
        parts += [entry(f"vcl.{home}.{name}", getattr(module, name), "###") for name in public(module)]
    return "\n\n".join(filter(None, parts)) + "\n"


def public(module: Any) -> list[str]:
    """The names that a module offers: those it lists, or those of things defined in its package."""
    listed = getattr(module, "__all__", None)
    names = listed or [n for n in vars(module) if not n.startswith("_")]
    ours = [n for n in names if getattr(getattr(module, n), "__module__", "").startswith("vcl")]
    return sorted(ours, key=str.lower)


def entry(name: str, thing: Any, level: str = "##") -> str:
    """A class with its methods, or a function; nothing else has a docstring of its own."""
    if not (inspect.isclass(thing) or inspect.isfunction(thing)):
        return ""
    parts = [f"{level} {name}", described(thing, name.rpartition(".")[2])]
    if inspect.isclass(thing):
        for member, value in sorted(vars(thing).items()):
            function = inspect.unwrap(getattr(value, "__func__", value))
            if inspect.isfunction(function) and not member.startswith("_"):
                parts += [f"{level}# {name}.{member}", described(function, member)]
    return "\n\n".join(parts)


def described(thing: Any, name: str) -> str:
    try:
        signature = re.sub(r"<factory>|<object object at 0x\w+>", "…", written(inspect.signature(thing), name))
        signature = re.sub(r"\b(?:[a-z_]+\.)+(?=[A-Z])", "", signature)  # pathlib.Path is Path
    except (TypeError, ValueError):
        signature = name
    return f"```python\n{signature}\n```\n\n{as_markdown(inspect.getdoc(thing) or '')}"


def written(signature: inspect.Signature, name: str) -> str:
    """In one line if it fits, else a line for each parameter; the reason for a setting's value is not a type."""
    plain = [p.replace(annotation=bare(p.annotation)) for p in signature.parameters.values()]
    returned = bare(signature.return_annotation)
    line = name + str(inspect.Signature(plain, return_annotation=returned))
    if len(line) <= 100:
        return line
    back = "" if returned is inspect.Signature.empty else str(inspect.Signature([], return_annotation=returned))[2:]
    lines = [f"    {p}," for p in plain]
    named = [number for number, p in enumerate(plain) if p.kind is p.KEYWORD_ONLY]
    if named and not any(p.kind is p.VAR_POSITIONAL for p in plain):
        lines.insert(named[0], "    *,")
    return "\n".join([f"{name}(", *lines, f"){back}"])


def bare(annotation: Any) -> Any:
    """`Annotated[float, "why"]` as `float`."""
    return get_args(annotation)[0] if hasattr(annotation, "__metadata__") else annotation


def as_markdown(text: str) -> str:
    """A docstring: sections become bold, examples become blocks of code."""
    text = re.sub(r"^(\w[\w ]*)\n-{3,}$", r"**\1**\n", text, flags=re.MULTILINE)
    blocks = []
    for paragraph in re.split(r"\n\s*\n", text):
        prose, prompt, example = paragraph.partition(">>>")
        blocks.append(prose.rstrip())
        if prompt:
            blocks.append(f"```python\n>>>{example}\n```")
    return "\n\n".join(filter(None, blocks))


# Pages


def inside(text: str) -> str:
    """A page without links to what is not on the site; pictures from results/ are brought along."""
    for place in re.findall(r"!\[[^\]]*\]\(\.\./([^)]+)\)", text):
        shutil.copy(ROOT / place, PAGES / "images")
        text = text.replace(f"](../{place})", f"](images/{Path(place).name})")
    text = re.sub(r"^<!--.*?-->\n", "", text, flags=re.MULTILINE)
    return re.sub(r"\[([^\]]+)\]\(\.\./[^)]*\)", r"\1", text).replace("](start.md", "](index.md")


def main() -> None:
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s")
    shutil.rmtree(PAGES, ignore_errors=True)
    shutil.copytree(ROOT / "docs", PAGES, ignore=shutil.ignore_patterns("site"))
    shutil.copy(HERE / "site.css", PAGES)
    (PAGES / "start.md").rename(PAGES / "index.md")
    changes = (ROOT / "CHANGELOG.md").read_text().replace("](docs/", "](")
    (PAGES / "changes.md").write_text(changes)
    for name, text in {"commands": commands(), "settings": settings(), "api": api()}.items():
        (PAGES / f"{name}.md").write_text(text)
    for page in PAGES.glob("*.md"):
        page.write_text(inside(page.read_text()))
    config = load_config(config_file=str(HERE / "mkdocs.yml"), docs_dir=str(PAGES), site_dir=str(SITE), nav=NAV)
    build(config)
    print(f"{SITE / 'index.html'}; with search: python -m http.server --bind 127.0.0.1 --directory {SITE}")


if __name__ == "__main__":
    main()
