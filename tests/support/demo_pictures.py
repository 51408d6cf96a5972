"""
Pictures of the demo for the README and the guide: its terminal, and its report, wide and narrow, light and dark.

    python -m tests.support.demo_pictures OUTPUT STORE FOLDER

OUTPUT is what `spotrun launch` printed with FORCE_COLOR=1 and COLUMNS=124. This writes FOLDER/terminal.svg, and from
the newest run in STORE FOLDER/report-light.png, report-dark.png, report-narrow-light.png and report-narrow-dark.png.
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tempfile
from itertools import product
from pathlib import Path

from rich.console import Console
from rich.text import Text

from tests.support import pages

NAME = "resnet50"
SIZES = {"report": (1280, 1000), "report-narrow": pages.PHONE}
MARGIN = 16
SCHEMES: tuple[pages.Scheme, ...] = ("light", "dark")
COLUMNS = 124
FONTS = "ui-monospace, SFMono-Regular, Menlo, Consolas, DejaVu Sans Mono, monospace"
COMMAND = "spotrun launch examples/resnet50.yaml -y"
_EVENT = re.compile(r"\d\d-\d\d \S+ +(\d+)  ")
_LEFT_OUT = re.compile(
    r"^\s+local/"  # offerings that are not taken
    r"|launch \d+ given up"
    r"|  \.\.  "  # where training is at the moment
    r"|\d  checkpoint durable: (?!.*\((final|interruption))"
    r"|^\d\d-\d\d .*(instance \S+ is running|attempt \d+ started|training: first new step|beginning at the start)"
)


def main(output: Path, store: str, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "terminal.svg").write_text(terminal(output.read_text()))
    with tempfile.TemporaryDirectory() as scratch:
        html = Path(scratch) / "report.html"
        command = [sys.executable, "-m", "spotrun", "report", NAME, "--store", store, "--html", str(html)]
        subprocess.run(command, check=True)
        report(html, folder)


def report(html: Path, folder: Path) -> None:
    """Pictures of a report's upper part: what the run came to, its course, and its attempts."""
    with pages.chromium() as browser:
        for (name, size), scheme in product(SIZES.items(), SCHEMES):
            with pages.visit(browser, html, size, scheme) as seen:
                above = seen.page.locator("section").first.bounding_box()
                assert above is not None
                height = above["y"] + above["height"] + MARGIN
                seen.page.screenshot(
                    path=folder / f"{name}-{scheme}.png",
                    full_page=True,
                    clip={"x": 0.0, "y": 0.0, "width": size[0], "height": height},
                )


def terminal(printed: str) -> str:
    """An SVG of the terminal, without lines of progress between the events, and without fonts to load."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print(Text.assemble(("$ ", "bold green"), (COMMAND, "bold")))
    lines = [Text.from_ansi(line) for line in printed.splitlines()]
    end = next(number for number, line in enumerate(lines) if line.plain.startswith("Where the time went"))
    saved = [line for line in lines if " all on demand: " in line.plain and line.plain.startswith("$")]
    in_vain = set(re.findall(r"launch (\d+) given up", printed))
    for line in [*lines[:end], *saved]:
        event = _EVENT.match(line.plain)
        if not (_LEFT_OUT.search(line.plain) or (event and event[1] in in_vain)):
            console.print(line, no_wrap=True, overflow="ellipsis", crop=True)
    svg = console.export_svg(title="spotrun", unique_id="demo")
    return re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.S).replace("Fira Code, monospace", FONTS)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
