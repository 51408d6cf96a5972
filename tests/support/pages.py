"""
Pages in a real, headless Chromium, as a reader meets them: with their own policy in force and no network.

The browser is the machine's own where it has one, else the one that `make browser` installs from the npm registry.
Playwright drives it from outside the page, and axe-core is evaluated the same way, so neither needs an exception from
the page's policy.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from playwright.sync_api import Browser, Page, sync_playwright

from tests.support.repository import ROOT

INSTALLED = ROOT / ".browser"
AXE = INSTALLED / "node_modules" / "axe-core" / "axe.min.js"
PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")

Scheme = Literal["light", "dark"]
DESKTOP, PHONE, SMALL_PHONE = (1280, 800), (390, 844), (320, 568)

_WATCH = """
window.violations = [];
document.addEventListener("securitypolicyviolation", event =>
  window.violations.push(`${event.violatedDirective} ${event.blockedURI}`));
"""


def missing() -> str:
    """Why no page can be looked at here; "" where one can."""
    if not AXE.exists():
        return "axe-core is not installed: apt-get install nodejs npm, then make browser"
    if _chromium() is None:
        return "there is no Chromium: apt-get install chromium, or rm -r .browser and make browser"
    return ""


def _chromium() -> Path | None:
    """`SPOTRUN_CHROMIUM` where it is set, then the machine's own, then the one from the npm registry."""
    named = (os.environ.get("SPOTRUN_CHROMIUM"), *map(shutil.which, PROGRAMS), INSTALLED / "chromium")
    return next((Path(path) for path in named if path and Path(path).exists()), None)


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser; the one from the npm registry brings the libraries and fonts that a bare machine lacks."""
    program = _chromium()
    assert program is not None, missing()
    brought = {"LD_LIBRARY_PATH": str(INSTALLED / "lib"), "FONTCONFIG_FILE": str(INSTALLED / "fonts.conf")}
    extra = brought if program.parent == INSTALLED else {}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, env={**os.environ, **extra})
        try:
            yield browser
        finally:
            browser.close()


class Visit:
    """One page, open. What goes wrong in it is noted from its first byte on."""

    def __init__(self, page: Page, address: str) -> None:
        self.page = page
        self.errors: list[str] = []
        """What the console reports as errors or warnings, exceptions, and dialogs that opened."""
        self.requested: list[str] = []
        page.on("console", lambda said: self.errors.append(said.text) if said.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("dialog", self._dismiss)
        page.on("request", lambda request: self.requested.append(request.url))
        page.add_init_script(_WATCH)
        page.goto(address)

    def _dismiss(self, dialog: Any) -> None:
        self.errors.append(f"a dialog opened: {dialog.message}")
        dialog.dismiss()

    @property
    def violations(self) -> list[str]:
        """What the page's policy has stopped."""
        found: list[str] = self.page.evaluate("window.violations")
        return found

    def findings(self) -> list[str]:
        """What axe-core finds, one a line: how grave, the rule, and where."""
        self.page.evaluate(AXE.read_text())
        found = self.page.evaluate("axe.run(document, {resultTypes: ['violations']})")
        return [
            f"{each['impact']}: {each['id']} at {json.dumps([node['target'] for node in each['nodes']][:3])}"
            for each in found["violations"]
        ]


@contextmanager
def visit(
    browser: Browser, place: Path | str, size: tuple[int, int] = DESKTOP, scheme: Scheme = "light"
) -> Iterator[Visit]:
    """
    A page as somebody with such a screen, who likes light or dark pages, meets it. It has a network only if `place` is
    an address and not a file.
    """
    width, height = size
    context = browser.new_context(
        viewport={"width": width, "height": height}, color_scheme=scheme, offline=isinstance(place, Path)
    )
    try:
        yield Visit(context.new_page(), place.as_uri() if isinstance(place, Path) else place)
    finally:
        context.close()
