"""What users read is true: Python blocks, command lines, doctests and examples are run.

Command lines about digits or about a run folder are really run, shortened; those that would download are parsed.
"""

import ast
import dataclasses
import doctest
import importlib
import json
import pkgutil
import re
import runpy
import shlex
import shutil
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from cyclopts import MissingArgumentError

import vcl
from vcl import runs
from vcl.benchmarks import STREAMS
from vcl.cli.app import COMMANDS, make_app, start
from vcl.methods import METHODS
from vcl.runs import comparison

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
PLACEHOLDERS = {"BENCHMARK": "split-digits", "METHOD": "ewc", "SIZE": "200", "DIR": "folder", "N": "5"}
PLACEHOLDERS |= {"MODEL": "churn.vcl", "FILE": "new.csv", "RISK": "0.1", "COLUMN": "churned"}
NAMES = {"--method": "ewc", "--recipe": "fast"}
"""What NAME stands for, after these flags."""
DOWNLOADS = ("mnist", "fashion", "cifar", "covertype", "elec2", "weather", "flights", "reproduce")
READ_LATER = {"prune", "widen", "resume", "learn"}
"""Commands whose folders or files later commands of the page read."""

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """In a folder of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NPROC", "1")


# Python


def python_blocks(text: str) -> list[str]:
    """Blocks to run, each at its own line number, so that errors show the line of the page."""
    found = re.finditer(r"^(<!-- not run -->\n)?```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return ["\n" * text[: match.start(2)].count("\n") + match[2] for match in found if not match[1]]


@pytest.mark.parametrize("page", [p for p in PAGES if python_blocks(p.read_text())], ids=lambda page: page.name)
def test_python_blocks_run_in_order(page):
    # Blocks define dataclasses and equinox modules, which look their module up by name.
    namespace = {"__name__": "__main__"}
    for block in python_blocks(page.read_text()):
        exec(compile(block, page, "exec"), namespace)


# Command lines


def command_lines(text: str) -> list[list[str]]:
    """Lines of indented blocks."""
    found = re.findall(r"^ {4,}(?:\.venv/bin/)?vcl +(.*)$", text, re.MULTILINE)
    return [shlex.split(line, comments=True) for line in found]


def inline_commands(text: str) -> list[list[str]]:
    """Commands within sentences and tables, perhaps broken across lines."""
    prose = re.sub(r"^(```.*?^```| {4,}.*?$)", "", text, flags=re.MULTILINE | re.DOTALL)
    found = re.findall(r"`(?:\.venv/bin/)?vcl\s+([^`]+)`", prose)
    return [tokens for line in found if "…" not in line and (tokens := shlex.split(line))]


def concrete(tokens: list[str], run: str = "runs/some-run") -> list[str]:
    """With names in place of placeholders."""
    after = zip(["", *tokens], tokens, strict=False)
    named = [NAMES.get(before, token) if token == "NAME" else token for before, token in after]
    return [run if token in ("RUN", "RUN...") else PLACEHOLDERS.get(token, token) for token in named]


def check_command(tokens: list[str]) -> None:
    """Parse a command line as the command line does, and check the names and settings in it."""
    _, bound, _ = make_app(tokens).parse_args(tokens, exit_on_error=False, print_error=False)
    given = bound.arguments
    if "--help" in tokens:
        return
    if tokens[0] in ("run", "compare"):
        assert given["benchmark"] in STREAMS
    if tokens[0] == "run":
        method = given.get("method", "vcl")
        fields = {field.name for field in dataclasses.fields(METHODS[method])}
        settings = {name: value for name, value in given.items() if name in {*fields, "recipe"}}
        runs.configure(given["benchmark"], method, **settings)
    if tokens[0] == "compare":
        comparison.entries(given.get("methods", "all"))


@each_page
def test_command_lines_can_be_parsed(page):
    text = page.read_text()
    names = {name for _, name, _ in COMMANDS} | {"data", "--help"}
    for tokens in command_lines(text):
        check_command(concrete(tokens))
    for tokens in inline_commands(text):
        assert tokens[0] in names, tokens
        # A sentence may leave out what is clear: `vcl run --trace`.
        with suppress(MissingArgumentError):
            check_command(concrete(tokens))


def test_searches_have_their_candidates():
    for page in PAGES:
        for method, plan, rest in re.findall(r"bench/search\.py ([a-z-]+) ([a-z0-9-]+)(.*)", page.read_text()):
            scenario = re.search(r"--scenario (\w+)", rest)
            candidates = json.loads((ROOT / "bench" / "candidates" / f"{method}.json").read_text())
            name = f"{plan}/{scenario[1]}" if scenario else plan
            assert name in candidates, (page.name, method, name)


def shortened(tokens: list[str]) -> list[str]:
    """The same command, done in a moment."""
    tokens = [token for token in tokens if token != "--open"]
    if tokens[0] == "compare":
        place = tokens.index("--methods") + 1
        asked = "ewc,finetune" if tokens[place] == "all" else tokens[place]
        tokens[place] = ",".join(f"{name}:epochs=1" for name in asked.split(","))
        return [*tokens, *["--num-tasks", "2", "--hidden", "8", "--jobs", "1", "--quiet"]]
    if tokens[0] == "learn":
        new = ["--hidden", "8", "--epochs", "1"] if "--label" in tokens else []
        return [*tokens, *new, "--quiet"]
    if tokens[0] == "run":
        added = {"--epochs": "1", "--num-tasks": "2", "--hidden": "8", "--threads": "1"}
        if "--online" in tokens:
            tokens[tokens.index("--online") + 1] = "1000"
            added |= {"--further-epochs": "1", "--num-tasks": "1"}
        return [*tokens, "--quiet", *(word for flag in added.items() if flag[0] not in tokens for word in flag)]
    return tokens


def runnable(page: Path) -> list[list[str]]:
    """The command lines of a page that need no download."""
    lines = [concrete(tokens, "RUN") for tokens in command_lines(page.read_text())]
    return [
        shortened(tokens) for tokens in lines if not any(name in token for token in tokens for name in DOWNLOADS)
    ]


def once(pages: list[Path]) -> dict[Path, list[list[str]]]:
    """What each page has to run; a command that only reads is run once with each set of flags."""
    seen: set[tuple[str, ...]] = set()
    chosen: dict[Path, list[list[str]]] = {}
    for page in pages:
        for tokens in runnable(page):
            flags = [token for token in tokens if token.startswith("--")]
            key = tuple(tokens) if tokens[0] in ("run", "compare") else (tokens[0], *flags)
            key = (page.name, *tokens) if tokens[0] in READ_LATER else key
            if key not in seen:
                chosen.setdefault(page, []).append(tokens)
            seen.add(key)
    return chosen


@pytest.fixture(scope="module")
def small_run(tmp_path_factory) -> Path:
    config = runs.configure(
        "split-digits", threads=1, stream=runs.StreamOptions(num_tasks=4), epochs=3, hidden=(4,), test_samples=3
    )
    root = tmp_path_factory.mktemp("runs")
    runs.run(config, root)
    return root / config.name


@pytest.mark.parametrize(("page", "lines"), once(PAGES).items(), ids=lambda value: getattr(value, "name", ""))
def test_command_lines_run_in_order(page, lines, small_run, monkeypatch):
    run = Path("runs") / small_run.name
    shutil.copytree(small_run, run)
    np.save("images.npy", np.zeros((5, 8, 8), np.uint8))
    for number, name in enumerate(("january", "february", "new")):
        visits = np.random.default_rng(number).normal(size=400)
        rows = [f"{x:.4f},{'ab'[i % 2]},{'yes' if x > 0 else 'no'}" for i, x in enumerate(visits)]
        Path(f"{name}.csv").write_text("\n".join(["visits,plan,churned", *rows]))
    for tokens in lines:
        command = concrete(tokens, str(run))
        monkeypatch.setattr(sys, "argv", ["vcl", *command])
        try:
            start(command)
        except SystemExit as ending:
            pytest.fail(f"vcl {shlex.join(command)} ended with {ending.code}")


# Links


@each_page
def test_links_lead_somewhere(page):
    for target, _, anchor in re.findall(r"\]\((?!http)([^)#]*)(#?)([^)]*)\)", page.read_text()):
        path = (page.parent / target).resolve() if target else page
        assert path.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE)
            assert anchor in {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


# The site


def test_the_site_has_every_page_command_setting_and_public_name():
    site = runpy.run_path(str(ROOT / "docs" / "site" / "build.py"))
    listed = re.findall(r"[\w-]+\.md", str(site["NAV"]))
    made = {"index.md", "commands.md", "settings.md", "api.md", "changes.md"}
    assert sorted(listed) == sorted(made | {page.name for page in PAGES[1:]} - {"start.md"})
    commands = site["commands"]()
    for _, name, _ in COMMANDS:
        assert f"## vcl {name}\n" in commands
    assert "`--checkpoint-seconds FLOAT`: Minimum time between checkpoints" in commands
    settings = site["settings"]()
    for name, kind in METHODS.items():
        part = settings.split(f"## {name}\n")[1].split("\n## ")[0]
        assert all(f"`--{field.name.replace('_', '-')}`" in part for field in dataclasses.fields(kind))
    api = site["api"]()
    classes = [name for name in vcl.__all__ if isinstance(getattr(vcl, name), type)]
    assert all(f"## vcl.{name}\n" in api for name in classes)
    assert "### vcl.Model.learn\n" in api


# Doctests and examples


def documented() -> list[str]:
    """The modules of vcl whose source has doctests."""
    names = [info.name for info in pkgutil.walk_packages(vcl.__path__, "vcl.")]
    return [name for name in ["vcl", *names] if ">>> " in source(name).read_text()]


def source(name: str) -> Path:
    path = Path(vcl.__file__).parent.joinpath(*name.split(".")[1:])
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


@pytest.mark.parametrize("name", documented())
def test_doctests(name):
    # Read from the source: the decorators that check types hide functions from doctest's own search.
    module, path = importlib.import_module(name), source(name)
    tree = ast.parse(path.read_text())
    nodes = (ast.Module, ast.ClassDef, ast.FunctionDef)
    runner = doctest.DocTestRunner()
    for node in [node for node in ast.walk(tree) if isinstance(node, nodes)]:
        told = ast.get_docstring(node) or ""
        title = f"{name}.{getattr(node, 'name', '')}"
        test = doctest.DocTestParser().get_doctest(told, dict(vars(module)), title, str(path), 0)
        runner.run(test)
    assert runner.tries > 0
    assert runner.failures == 0


def test_the_example_of_monthly_batches_learns_every_month(capsys):
    runpy.run_path(str(ROOT / "examples" / "monthly_batches.py"))
    accuracies = [float(a) for a in re.findall(r"accuracy (0\.\d+)", capsys.readouterr().out)]
    assert len(accuracies) == 7
    first, june, june_only = accuracies[0], accuracies[5], accuracies[6]
    assert june > max(first, june_only)


def printed_by(example: str, capsys) -> str:
    runpy.run_path(str(ROOT / "examples" / f"{example}.py"))
    return capsys.readouterr().out


def test_the_example_of_monthly_tables_answers_what_it_is_sure_of(capsys):
    told = printed_by("monthly_tables", capsys)
    assert len(re.findall(r"after 0\.[89]|after 1", told)) == 4
    assert "price: its mean" in told
    answered, wrong = (float(number) for number in re.search(r"Answered (\d+)% .* which ([\d.]+)%", told).groups())
    assert answered > 50
    assert wrong < 10


def test_the_example_of_new_classes_forgets_less_with_a_few_images(capsys):
    told = printed_by("new_classes", capsys)
    without, with_some = (float(a) for a in re.findall(r"accuracy (0\.\d+)", told))
    assert with_some > without + 0.3


def test_the_example_of_a_method_of_ones_own_forgets_less_than_nothing_at_all(capsys):
    forgotten = [float(a) for a in re.findall(r"forgetting (\d\.\d+)", printed_by("own_method", capsys))]
    assert forgotten[1] < forgotten[0]


def test_the_example_of_embeddings_is_less_sure_of_noise(capsys):
    told = printed_by("own_embeddings", capsys)
    first, second = (float(a) for a in re.findall(r"accuracy (0\.\d+)", told))
    assert second > first - 0.01 > 0.8
    digits, noise = (float(a) for a in re.findall(r"(\d\.\d+) nats", told))
    assert noise > digits


def test_the_example_of_a_custom_stream_learns_and_is_less_sure_far_from_its_data(capsys):
    runpy.run_path(str(ROOT / "examples" / "custom_stream.py"))
    printed = capsys.readouterr().out
    assert min(float(a) for a in re.findall(r"'(0\.\d+)'", printed)) > 0.9
    near, far = (float(a) for a in re.findall(r"of which (0\.\d+)", printed))
    assert far > 2 * near
