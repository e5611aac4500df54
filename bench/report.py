"""How large a report is and how soon its units are drawn in chromium; with --shots, screenshots of it.

    python bench/report.py report.html [--times 5] [--shots DIR]

Ends with an error if the units take longer than two seconds.
"""

import argparse
import shutil
import statistics
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)
MOST_SECONDS = 2.0
DESK = {"viewport": {"width": 1400, "height": 900}}
PHONE = {"viewport": {"width": 390, "height": 844}, "device_scale_factor": 2}
SHOTS = {
    f"{name}-{scheme}": {**options, "color_scheme": scheme}
    for name, options in {"desk": DESK, "phone": PHONE}.items()
    for scheme in ("light", "dark")
}


def chromium() -> str | None:
    """Where the system's chromium is."""
    found = (shutil.which(name) for name in ("chromium", "chromium-browser", "google-chrome"))
    return next(filter(None, found), None)


@contextmanager
def browser() -> Iterator[Browser]:
    """The system's chromium, which talks to nobody."""
    with sync_playwright() as playwright:
        driven = playwright.chromium.launch(executable_path=chromium(), args=list(FLAGS))
        yield driven
        driven.close()


def seconds_to_units(driven: Browser, report: Path) -> float:
    """From the start of the navigation until the first run's units are drawn, in a fresh window."""
    page = driven.new_page()
    page.goto(report.resolve().as_uri())
    page.wait_for_selector(".explorer[data-ready]")
    milliseconds = page.evaluate("performance.getEntriesByName('units drawn')[0].startTime")
    page.close()
    return milliseconds / 1000


def open_unit(page: Page) -> None:
    """Select the unit with the largest removal effect."""
    page.wait_for_selector(".explorer[data-ready]")
    page.select_option("select[name=sort] >> nth=0", "removal_effect")
    page.click(".unit >> nth=0")


def take_shots(driven: Browser, report: Path, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, options in SHOTS.items():
        page = driven.new_page(**options)
        page.goto(report.resolve().as_uri())
        open_unit(page)
        page.screenshot(path=folder / f"{name}.png", full_page=True)
        page.locator(".explorer").first.screenshot(path=folder / f"{name}-explorer.png")
        page.close()


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("report", type=Path)
    arguments.add_argument("--times", type=int, default=5)
    arguments.add_argument("--shots", type=Path)
    asked = arguments.parse_args()
    if chromium() is None:
        sys.exit("There is no chromium. Install it: apt-get install chromium")
    with browser() as driven:
        seconds = [seconds_to_units(driven, asked.report) for _ in range(asked.times)]
        if asked.shots:
            take_shots(driven, asked.report, asked.shots)
    print(
        f"{asked.report}: {asked.report.stat().st_size / 1e6:.2f} MB, units drawn after "
        f"{statistics.median(seconds):.2f} s (median of {len(seconds)}, at most {max(seconds):.2f} s)"
    )
    if statistics.median(seconds) > MOST_SECONDS:
        sys.exit(f"That is longer than {MOST_SECONDS:.0f} seconds.")


if __name__ == "__main__":
    main()
