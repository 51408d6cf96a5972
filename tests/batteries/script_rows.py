"""The table of docs/exactness-measured.md about scripts: a row for each of tests/batteries/scripts."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spotrun.units import count_of
from tests.support.repository import ROOT

SCRIPTS = ROOT / "tests" / "batteries" / "scripts"
PAGE = ROOT / "docs" / "exactness-measured.md"
BEGIN, END = "<!-- table: make battery NAME=scripts -->", "<!-- end of table -->"
HEAD = (
    "| script | pattern, and where it is common | steps | kills | verdict | compared | not compared, or refused |\n"
    "|---|---|---|---|---|---|---|\n"
)
REFUSES = "spotrun refuses "
"""Begins what verify-resume says of a script that spotrun does not train."""
UNMEASURED = "not measured yet"
_ROW = re.compile(r"^\| \[(?P<name>\w+)\]", re.M)
_NAMED_MAX, _TEXT_MAX = 3, 300
_COUNTED: dict[str, tuple[str, ...]] = {
    "validations": ("validation",),
    "weights": ("weight",),
    "optimizer": ("part of optimizers", "parts of optimizers"),
    "rng": ("generator",),
    "metrics": ("metric",),
    "state": ("value of objects", "values of objects"),
    "results": ("result",),
    "files": ("file",),
}


@dataclass(frozen=True)
class Script:
    """A script, and what its docstring says of it: the pattern, and where that is common."""

    name: str
    pattern: str
    stands_for: str

    @property
    def path(self) -> Path:
        return SCRIPTS / f"{self.name}.py"


def script(name: str) -> Script:
    text = ast.get_docstring(ast.parse((SCRIPTS / f"{name}.py").read_text())) or ""
    pattern, _, stands_for = text.partition("\n\nStands for: ")
    assert pattern, f"{name}.py says no pattern"
    assert stands_for, f"{name}.py does not say what it stands for"
    return Script(name, " ".join(pattern.split()), " ".join(stands_for.split()))


def scripts() -> list[Script]:
    return [script(path.stem) for path in sorted(SCRIPTS.glob("*.py"))]


def row(script: Script, seen: Mapping[str, Any] | None) -> str:
    """`seen` is the JSON of verify-resume. None: not measured yet."""
    about = f"{script.pattern} *{script.stands_for}*"
    cells = [f"[{script.name}](../tests/batteries/scripts/{script.name}.py)", about]
    if seen is None:
        cells += ["", "", UNMEASURED, "", ""]
    elif "error" in seen:
        advice = "; ".join(each["fix"] for each in seen["problems"] if each["fix"])
        cells += ["", "", verdict(seen), "", f"{seen['error']}; try: {advice}"]
    else:
        cells += [str(seen["steps"]), _kills(seen), verdict(seen), _compared(seen), _left_out(seen)]
    return "| " + " | ".join(_cell(cell) for cell in cells) + " |\n"


def verdict(seen: Mapping[str, Any]) -> str:
    if "error" in seen:
        return "refused" if seen["error"].startswith(REFUSES) else "not verified"
    first = seen["first_difference"]
    if first is None:
        return "identical"
    name = f" `{first['name']}`" if first["name"] else ""
    where = f" ({first['where']})" if first["where"] else ""
    when = "" if first["resumed"] else ", before any kill"
    step = "" if first["step"] is None else f" at step {first['step']}"
    return f"**differs**: {first['kind']}{name}{where}{step}{when}"


def _kills(seen: Mapping[str, Any]) -> str:
    victims = Counter(kill["victim"] for kill in seen["kills"])
    which = ", ".join(f"{count} of the {victim}" for victim, count in sorted(victims.items()))
    return f"{len(seen['kills'])} ({which}); {seen['batches_redone']} batches redone"


def _compared(seen: Mapping[str, Any]) -> str:
    counts = {each["what"]: each["count"] for each in seen["compared"]}
    return ", ".join(count_of(counts[what], *words) for what, words in _COUNTED.items() if what in counts)


def _left_out(seen: Mapping[str, Any]) -> str:
    reasons: dict[str, list[str]] = {}
    for each in seen["not_compared"]:
        reasons.setdefault(each["why"], []).append(each["name"])
    parts = [f"{_named(names)}: {why}" for why, names in reasons.items()]
    if seen["not_carried"]:
        names = [f"{each['place']} ({each['what']})" for each in seen["not_carried"]]
        parts.append(f"the run said that no checkpoint holds {_named(names)}")
    return "; ".join(parts) or "nothing"


def _named(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED_MAX} more" if len(names) > _NAMED_MAX else ""
    return ", ".join(f"`{name}`" for name in names[:_NAMED_MAX]) + more


def _cell(text: str) -> str:
    text = " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
    return text if len(text) <= _TEXT_MAX else text[:_TEXT_MAX] + "…"


def rows_of(page: str) -> dict[str, str]:
    """The rows that the page has, by the names of their scripts."""
    table = page.partition(BEGIN)[2].partition(END)[0]
    return {found["name"]: line + "\n" for line in table.splitlines() if (found := _ROW.match(line))}


def with_rows(page: str, results: Mapping[str, Mapping[str, Any]]) -> str:
    """The page with a row for each script: what was measured now, or else what the page has, if it has any."""
    before = rows_of(page)
    rows = [
        before[each.name] if each.name in before and each.name not in results else row(each, results.get(each.name))
        for each in scripts()
    ]
    head, _, rest = page.partition(BEGIN)
    return f"{head}{BEGIN}\n\n{HEAD}{''.join(rows)}\n{END}{rest.partition(END)[2]}"
