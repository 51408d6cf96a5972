"""
Fails if a test was skipped that expected_skips.txt does not list: a green run must mean that the tests ran.

    python tests/support/expected_skips.py RESULTS.xml      # as pytest --junitxml writes it

`expected_skips.txt` lists the tests that may be skipped. A test marked xfail did run and is none of them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

LIST = Path(__file__).with_suffix(".txt")


def skipped(results: Path) -> Iterator[tuple[str, str]]:
    """(name, reason) of every skipped test; of a skipped module the name is that of the module."""
    for case in ElementTree.parse(results).iter("testcase"):
        for mark in case.iterfind("skipped"):
            if mark.get("type") != "pytest.xfail":
                name = "::".join(filter(None, (case.get("classname"), case.get("name"))))
                yield name, mark.get("message", "no reason given")


def expected(listing: Path = LIST) -> set[str]:
    lines = (line.partition("  #")[0].strip() for line in listing.read_text().splitlines())
    return {line for line in lines if line and not line.startswith("#")}


def main(results: Path) -> int:
    allowed = expected()
    unexpected = [(name, reason) for name, reason in skipped(results) if name not in allowed]
    for name, reason in unexpected:
        print(f"error: {name} was skipped: {reason}")
    if unexpected:
        print(f"  try: make it run, or list it in tests/support/{LIST.name}")
    return 1 if unexpected else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
