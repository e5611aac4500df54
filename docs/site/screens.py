"""The screenshots of docs/screenshots.md, taken in chromium; the site must have been built before.

.venv/bin/python docs/site/screens.py RUN MODEL
"""

import argparse
import io
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image
from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "bench"))
from report import browser  # noqa: E402

IMAGES, SITE = ROOT / "docs" / "images", ROOT / "build" / "site"
WIDTHS = (390, 900, 1400)
COLUMNS = 100
SHADES = 224
TALL = {390: 1500, 900: 1500, 1400: 1400}


def vcl(*arguments: str, **environment: str) -> str:
    """What a command prints."""
    command = [sys.executable, "-m", "vcl", *arguments]
    return subprocess.run(
        command, check=True, capture_output=True, text=True, env={**os.environ, **environment}
    ).stdout


def shoot(driven, page_path: Path, name: str, width: int, scheme: str = "light", at: str = "") -> None:
    """One window of a page, from `at` (a CSS selector) on, with few colours, so that the file is small."""
    page = driven.new_page(viewport={"width": width, "height": TALL.get(width, 900)}, color_scheme=scheme)
    page.goto(page_path.resolve().as_uri())
    if page.locator(".explorer").count():
        page.wait_for_selector(".explorer[data-ready]")
    if at:
        page.eval_on_selector(at, "e => e.scrollIntoView()")
    wide = page.evaluate("document.documentElement.scrollWidth")
    if wide > width:
        sys.exit(f"{name}: {wide} pixels wide in a window of {width}")
    shot = Image.open(io.BytesIO(page.screenshot()))
    shot.convert("RGB").quantize(SHADES).save(IMAGES / f"screen-{name}.png", optimize=True)
    page.close()


def terminal(driven, folder: Path, text: str) -> None:
    """What a terminal of a hundred columns shows."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO())
    console.print(Text.from_ansi(text))
    drawing = folder / "terminal.svg"
    drawing.write_text(console.export_svg(title="vcl"))
    page = driven.new_page(viewport={"width": 1240, "height": 800})
    page.goto(drawing.as_uri())
    shot = Image.open(io.BytesIO(page.locator("svg").screenshot()))
    shot.convert("RGB").quantize(SHADES).save(IMAGES / "screen-terminal.png", optimize=True)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("run", type=Path)
    arguments.add_argument("model", type=Path)
    arguments.add_argument("--reports", type=Path, help="folder that holds run.html and model.html already")
    asked = arguments.parse_args()
    with tempfile.TemporaryDirectory() as scratch, browser() as driven:
        folder = asked.reports or Path(scratch)
        if not asked.reports:
            vcl("report", str(asked.run), "--out", str(folder / "run.html"))
            vcl("report", str(asked.model), "--out", str(folder / "model.html"))
        for scheme in ("light", "dark"):
            for width in WIDTHS:
                at = ".explorer" if (scheme == "dark") else ""
                shoot(driven, folder / "run.html", f"report-{scheme}-{width}", width, scheme, at)
        shoot(driven, folder / "model.html", "model-light", 1100)
        shoot(driven, SITE / "tutorial.html", "site-tutorial", 1200)
        shoot(driven, SITE / "commands.html", "site-commands", 1200)
        told = vcl("show", str(asked.run), COLUMNS=str(COLUMNS), FORCE_COLOR="1")
        # What follows names folders of this machine.
        terminal(driven, Path(scratch), f"$ vcl show {asked.run.name}\n{told.partition('Run folder')[0]}")


if __name__ == "__main__":
    main()
