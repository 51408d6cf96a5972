"""The HTML pages in a real browser: nothing is blocked, nothing is asked for, and everybody can read and work them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator

from tests.support import pages
from tests.support.eventually import eventually
from tests.support.report_samples import SAMPLES

if reason := pages.missing():
    pytest.skip(reason, allow_module_level=True)

SIZE_MAX = 1_500_000
GRAVE = ("serious:", "critical:")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with pages.chromium() as found:
        yield found


@pytest.fixture(params=SAMPLES)
def page_file(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return written(request.param, tmp_path)


def written(name: str, folder: Path) -> Path:
    path = folder / f"{name}.html"
    path.write_text(SAMPLES[name]())
    return path


@pytest.mark.parametrize(
    ("size", "scheme"), [(pages.DESKTOP, "light"), (pages.PHONE, "dark")], ids=["desktop-light", "phone-dark"]
)
def test_a_page_has_no_fault_that_axe_or_the_console_knows(
    browser: Browser, page_file: Path, size: tuple[int, int], scheme: pages.Scheme
) -> None:
    assert page_file.stat().st_size <= SIZE_MAX
    with pages.visit(browser, page_file, size, scheme) as seen:
        assert seen.findings() == []
        assert seen.errors == []
        assert seen.violations == []
        assert seen.requested == [page_file.as_uri()]
        assert _does_not_fit(seen) == []
        if size == pages.PHONE:
            seen.page.set_viewport_size({"width": pages.SMALL_PHONE[0], "height": pages.SMALL_PHONE[1]})
            assert _does_not_fit(seen) == []


def test_browser_checks_find_planted_faults(browser: Browser, tmp_path: Path) -> None:
    """The same page with a script, a picture from elsewhere without a name, and a button without one."""
    path = written("report", tmp_path)
    planted = '<script>1</script><img src="https://example.org/x"><button></button>'
    planted += '<div class="drawing"><svg class="marks" width="9999"><text y="9">a</text></svg></div>'
    path.write_text(path.read_text().replace("<main>", f"<main>{planted}", 1))
    with pages.visit(browser, path) as seen:
        assert any(finding.startswith(GRAVE) for finding in seen.findings())
        assert any("Content Security Policy" in error for error in seen.errors)
        assert {each.split()[0] for each in seen.violations} == {"img-src", "script-src-elem"}
        assert _does_not_fit(seen)[:2] == ["the page scrolls sideways", "svg"]


def test_a_table_is_sorted_from_the_keyboard(browser: Browser, tmp_path: Path) -> None:
    with pages.visit(browser, written("report", tmp_path)) as seen:
        head = seen.page.locator("th", has_text="cost").first
        _tab_to(head.locator("button"))
        for order, direction in (("ascending", 1), ("descending", -1)):
            seen.page.keyboard.press("Enter")
            assert head.get_attribute("aria-sort") == order
            values = _column(head)
            assert values == sorted(values, key=lambda value: direction * value)
        assert len(set(values)) > 2
        outline = head.locator("button").evaluate("each => getComputedStyle(each).outlineStyle")
        assert outline == "solid"  # who works it from the keyboard sees where he is


def test_wide_tables_scroll_from_the_keyboard(browser: Browser, tmp_path: Path) -> None:
    with pages.visit(browser, written("comparison", tmp_path), pages.PHONE) as seen:
        region = seen.page.get_by_role("region").first
        _tab_to(region)
        seen.page.keyboard.press("ArrowRight")
        eventually(lambda: region.evaluate("each => each.scrollLeft") > 0)


def _does_not_fit(seen: pages.Visit) -> list[str]:
    """Parts of drawings that are wider than the page or begin outside of it, and texts that have shrunk with theirs."""
    found: list[str] = seen.page.evaluate(
        """() => {
          const edge = document.documentElement.clientWidth;
          const fits = each => {
            const box = each.getBoundingClientRect();
            return box.left >= 0 && box.right <= edge && (each.tagName !== "text" || !box.height || box.height >= 13);
          };
          const page = document.documentElement.scrollWidth > edge ? ["the page scrolls sideways"] : [];
          const parts = [...document.querySelectorAll(".drawing *")];
          if (!parts.length) return ["there is no drawing"];
          return [...page, ...parts.filter(each => !fits(each)).map(each => each.tagName)];
        }"""
    )
    return found


def _tab_to(target: Locator) -> None:
    page = target.page
    for _ in range(500):
        page.keyboard.press("Tab")
        if target.evaluate("each => each === document.activeElement"):
            return
    pytest.fail(f"Tab never reaches {target}")


def _column(head: Locator) -> list[float]:
    """The exact figures below a head, from top to bottom; the foot is not among them."""
    rows = "[...head.closest('table').tBodies[0].rows]"
    found = head.evaluate(f"head => {rows}.map(row => row.cells[head.cellIndex].dataset.value)")
    return [float(value) for value in found]
