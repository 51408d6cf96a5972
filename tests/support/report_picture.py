"""
The README's picture of a report, light and dark: the newest run of a store, as `spotrun report --html` shows it.

    python -m tests.support.report_picture STORE FOLDER     # FOLDER/report-light.png and FOLDER/report-dark.png
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support import pages

NAME = "resnet50"
SIZE, MARGIN = (1160, 1000), 16
SCHEMES: tuple[pages.Scheme, ...] = ("light", "dark")


def main(store: str, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch, pages.chromium() as browser:
        html = Path(scratch) / "report.html"
        command = [sys.executable, "-m", "spotrun", "report", NAME, "--store", store, "--html", str(html)]
        subprocess.run(command, check=True)
        for scheme in SCHEMES:
            with pages.visit(browser, html, SIZE, scheme) as seen:
                above = seen.page.locator("section").first.bounding_box()  # what it came to, its course, its attempts
                assert above is not None
                clip = {"x": 0.0, "y": 0.0, "width": SIZE[0], "height": above["y"] + above["height"] + MARGIN}
                seen.page.screenshot(path=folder / f"report-{scheme}.png", full_page=True, clip=clip)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
