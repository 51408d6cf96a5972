"""The rooms of tests/: what each holds, and that tests/unit needs no server, no training and no process of ours."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.support.repository import ROOT

TESTS = ROOT / "tests"
ROOMS = ("unit", "contract", "cloud", "runs", "browser", "device")
FILES = sorted(path for path in TESTS.rglob("*.py") if "jobs" not in path.parts)
TEST_FILES = [path for path in FILES if path.name.startswith("test_")]
UNIT_FILES = [path for path in TEST_FILES if path.parent.name == "unit"]
STARTS = {"boto3", "http", "moto", "multiprocessing", "socket", "subprocess", "spotrun.clouds.local.driver"}
"""What a file of tests/support imports that starts servers or processes, or talks to them."""


def place_of(path: Path) -> str:
    return path.relative_to(TESTS).as_posix()


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def statements_of(node: ast.AST) -> Iterator[ast.AST]:
    """All of them, also within others. What they compute is left out: it is most of a file."""
    yield node
    for name in ("body", "handlers", "orelse", "finalbody", "cases"):
        inner = getattr(node, name, ())
        for each in inner if isinstance(inner, list) else ():
            yield from statements_of(each)


@cache
def imports_of(path: Path) -> frozenset[str]:
    """Dotted names of all imports: `from a import b` is `a` and `a.b`."""
    found = set()
    for node in statements_of(tree_of(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return frozenset(found)


def support_of(path: Path) -> set[Path]:
    """The files of tests/support that a file imports, and those that they import."""
    found: set[Path] = set()
    new = {path}
    while new:
        names = {name for each in new for name in imports_of(each) if name.startswith("tests.support.")}
        new = {place for name in names if (place := ROOT / f"{name.replace('.', '/')}.py").exists()} - found
        found |= new
    return found


def fixtures_of(path: Path) -> set[str]:
    functions = [node for node in tree_of(path).body if isinstance(node, ast.FunctionDef)]
    return {each.name for each in functions if "fixture" in "".join(map(ast.unparse, each.decorator_list))}


def taken_by(test: ast.FunctionDef) -> set[str]:
    """The fixtures that a test asks for: its arguments but those that a decorator gives it."""
    given = {node.value for each in test.decorator_list for node in ast.walk(each) if isinstance(node, ast.Constant)}
    names = {word.strip() for text in given if isinstance(text, str) for word in text.split(",")}
    return {argument.arg for argument in test.args.args} - names


def test_a_room_has_tests_and_what_they_share_and_nothing_else() -> None:
    rooms = {path.parent.name for path in TEST_FILES if path.parent.parent == TESTS}
    assert (rooms, {path.parent.parent for path in TEST_FILES}) == (set(ROOMS), {TESTS})
    # The simulated accelerator is next to its tests, and nothing else uses it.
    shared = [room for room in ROOMS if room != "device"]
    others = [path for room in shared for path in (TESTS / room).rglob("*.py") if path not in TEST_FILES]
    assert [place_of(path) for path in others if path.name != "conftest.py"] == []


@pytest.mark.exhaustive
def test_no_test_file_is_imported() -> None:
    for path in FILES:
        wrong = [name for name in imports_of(path) if name.startswith("tests.") and ".test_" in name]
        assert not wrong, f"{path} imports {wrong}: what both need goes to tests/support"


@pytest.mark.exhaustive
def test_a_unit_test_starts_no_server_and_no_training() -> None:
    shared = fixtures_of(TESTS / "conftest.py")
    for path in UNIT_FILES:
        functions = [node for node in tree_of(path).body if isinstance(node, ast.FunctionDef)]
        taken = {name for each in functions if each.name.startswith("test_") for name in taken_by(each)}
        taken -= fixtures_of(path)
        assert not taken & shared, f"{path} takes {taken & shared}"
        for support in support_of(path):
            wrong = {name for name in imports_of(support) if name in STARTS or name.split(".")[0] in STARTS}
            assert not wrong, f"{path} needs {place_of(support)}, which imports {sorted(wrong)}"


def test_the_rules_see_what_they_forbid() -> None:
    assert {"sandbox", "servers", "bucket", "account"} <= fixtures_of(TESTS / "conftest.py")
    story = support_of(TESTS / "runs" / "test_story.py")
    assert any(STARTS & imports_of(each) for each in story)


def test_each_file_with_nightly_tests_is_in_the_list_of_what_covers_them() -> None:
    listed = (TESTS / "nightly").with_suffix(".md").read_text()
    marked = [path for path in TEST_FILES if "mark.nightly" in path.read_text() and path != Path(__file__)]
    assert marked
    assert [place_of(path) for path in marked if path.stem not in listed] == []
