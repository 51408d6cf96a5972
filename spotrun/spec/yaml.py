"""
Reads YAML into plain data, with the line number of each key and a list of the problems in the text. Writes plain data
as YAML.

The reader accepts only YAML that all readers understand in the same way. It refuses duplicate keys, tags, several
documents, `.nan`, and values with a surprising meaning in YAML 1.1 (`no` is a boolean, `1:30` is 90, `010` is 8). Each
refusal names the line. A file with more than NODES_MAX values is refused too. Each use of an alias counts as all values
that the alias stands for. The merge key (`<<: *defaults`) adds keys to a mapping, but does not replace keys that the
mapping already has.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from decimal import Decimal
from io import StringIO
from itertools import islice
from typing import Any

import yaml

from spotrun.spec.problems import Choices, Key, Problem, pair_without_space, written_choices
from spotrun.units import shown

BYTES_MAX = 1 << 20
NODES_MAX = 5_000
DEPTH_MAX = 12
BEGIN = "train: {script: train.py}"

_Parser: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_resolver = yaml.resolver.Resolver()
_INT = re.compile(r"[-+]?(0|[1-9][0-9]{0,17})", re.ASCII)
_FLOAT = re.compile(r"[-+]?([0-9]{1,18}\.[0-9]{0,18}|\.[0-9]{1,18})([eE][-+]?[0-9]{1,2})?", re.ASCII)
_UNPRINTABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f\ufffe\uffff]")
_PAIR = re.compile(r" *[\w.-]+:( |$)", re.ASCII)
_WORD = re.compile(r" *[A-Za-z_]\w* *", re.ASCII)
_NO_COLON = re.compile(r"([A-Za-z_]\w*) +[\[{].*", re.ASCII | re.DOTALL)
"""Matches `budget {max_usd`, which YAML reads as a key in a line such as `budget {max_usd: 4}`."""
_CLOSED_BY = {"{": "}", "[": "]", '"': '"', "'": "'"}
_NO_VALUE = "has no value"
NULLS = ("", "~", "null", "Null", "NULL")
"""Texts that YAML reads as a missing value."""
OFF_IS_A_WORD_IN = ("checkpoint", "exact")
"""The key whose value may be `off`, which YAML reads as false."""

NAMES_WITH_COLON_IN = ("accelerators",)
"""The key in whose mapping SkyPilot accepts names without a value that contain a colon: `{T4:1, V100:1}`."""


@dataclass(frozen=True)
class Position:
    """A line and a column in a file, counted from 1 as in editors."""

    line: int
    column: int


TOP = Position(1, 1)


@dataclass
class Document:
    """
    The content of a file: `data`, the `positions` of its keys and list items, and the `problems` of its text.

    `unreadable` are the keys whose values could not be read. For each of them, `data` has the text that was written, so
    that all other keys can still be checked.
    """

    data: dict[str, Any] = field(default_factory=dict)
    positions: dict[Key, Position] = field(default_factory=dict)
    problems: list[tuple[Position, Problem]] = field(default_factory=list)
    unreadable: set[Key] = field(default_factory=set)

    def follows(self, problem: Problem) -> bool:
        """
        Return True if a problem exists only because the value of its key, or of an enclosing key, could not be read.
        """
        return any(problem.key[: len(key)] == key for key in self.unreadable)


@dataclass(frozen=True)
class _Node:
    """
    A part of the file: a scalar (text), a list (nodes), or a mapping (pairs of nodes). An alias is replaced by the node
    to which the alias refers.
    """

    content: str | list[_Node] | list[tuple[_Node, _Node]]
    kind: str
    at: Position
    plain: bool = False
    tag: str | None = None

    @property
    def merges(self) -> bool:
        return self.plain and self.content == "<<"


class _Stop(Exception):
    """The end of reading: nothing after this point can be read."""

    def __init__(self, at: Position, message: str, suggestion: str | None = None, key: Key = ()) -> None:
        self.at = at
        self.problem = Problem(key, message, suggestion)


def read_yaml(text: str, begin: str = BEGIN) -> Document:
    """
    Read the document in `text`. This never raises an error: what is wrong with the text is listed in `problems`.
    Messages use `begin` as an example of how a file of this kind begins.
    """
    document, composer = Document(), _Composer(text, begin)
    try:
        _refuse_unprintable(text)
        root = composer.root()
        if root.kind != "mapping":
            advice = _advice_on_space(root.content) or f"begin with {begin}"
            raise _Stop(root.at, "the file must hold key: value lines, not " + _an(root), advice)
        document.data = _Constructor(document).value(root, ())
    except _Stop as stop:
        document.problems.append((stop.at, stop.problem))
    except yaml.MarkedYAMLError as error:
        found = (
            _unclosed(error, text, composer.newest)
            or _unspaced(error, text, composer.newest)
            or _misindented(error, text)
            or _syntax_problem(error, text)
        )
        document.problems.append(found)
    except yaml.YAMLError as error:
        document.problems.append((TOP, Problem((), f"is not YAML: {shown(error, 200)}", "check it with an editor")))
    return document


class _Dumper(yaml.SafeDumper):  # type: ignore[misc]
    """Writes text with several lines as a block."""

    def represent_str(self, text: str) -> Any:
        return self.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)

    def represent_decimal(self, number: Decimal) -> Any:
        return self.represent_scalar("tag:yaml.org,2002:float", f"{number:f}")


_Dumper.add_representer(str, _Dumper.represent_str)
_Dumper.add_representer(Decimal, _Dumper.represent_decimal)


def write_yaml(data: dict[str, Any]) -> str:
    """Write plain data as YAML, with its keys in the given order."""
    return str(yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True))


def _an(node: _Node) -> str:
    return "a list" if node.kind == "sequence" else f"the text {shown(node.content)!r}"


def _refuse_unprintable(text: str) -> None:
    match = _UNPRINTABLE.search(text)
    if match:
        before = text[: match.start()]
        at = Position(before.count("\n") + 1, match.start() - before.rfind("\n"))
        raise _Stop(at, f"contains the control character U+{ord(match[0]):04X}", "remove it")


def _unclosed(error: yaml.MarkedYAMLError, text: str, newest: Any) -> tuple[Position, Problem] | None:
    """
    Return the problem of a bracket or a quote that begins on a line before the one at which the parser stopped; None if
    there is no such bracket or quote. The parser stops far behind it, at text that belongs to other keys. `newest` is
    the newest event of the parser.
    """
    stopped, began = error.problem_mark, error.context_mark
    of_bracket = (error.context or "").startswith("while parsing a flow")
    endless = error.context == "while scanning a quoted scalar" and "unexpected" in (error.problem or "")
    if not of_bracket and not endless:  # a quote may have ended at one that was to begin another text
        quoted = isinstance(newest, yaml.ScalarEvent) and newest.style in _CLOSED_BY
        began = newest.start_mark if quoted and stopped and newest.end_mark.line == stopped.line else None
    if stopped is None or began is None or (began.line >= stopped.line and not endless):
        return None
    lines = text.splitlines()
    opened, ends = lines[began.line][began.column : began.column + 1], stopped.line >= len(lines)
    closed_by = _CLOSED_BY.get(opened, opened)
    comma = f", or a comma is missing before line {stopped.line + 1}" if of_bracket and not ends else ""
    reason = f"is not YAML: the {opened} that begins here is not closed{'' if endless else ' on its line'}{comma}"
    return _position(began), Problem((), reason, f"write the {closed_by} that closes it")


def _unspaced(error: yaml.MarkedYAMLError, text: str, newest: Any) -> tuple[Position, Problem] | None:
    """
    Return the problem of a line without a space after its colon, which YAML reads as the beginning of a text; None if
    there is no such line right above the one at which the parser stopped. `newest` is the newest event of the parser.
    """
    in_block = isinstance(newest, yaml.ScalarEvent) and newest.style in ("|", ">")
    above = text.splitlines()[: error.problem_mark.line] if error.problem_mark and not in_block else []
    while above and not above[-1].strip():
        del above[-1]
    found = None
    while above and (advice := _advice_on_space(above[-1].strip())):
        at = Position(len(above), len(above[-1]) - len(above[-1].lstrip()) + 1)
        found = at, Problem((), "is not YAML: a space is missing", advice)
        del above[-1]
    return found


def _misindented(error: yaml.MarkedYAMLError, text: str) -> tuple[Position, Problem] | None:
    """
    Return the problem of a `key: value` line that is indented neither like the line above it nor like a section that
    encloses that line; None if the parser did not stop at such a line.
    """
    lines = text.splitlines()[: error.problem_mark.line + 1] if error.problem_mark else []
    numbered = [(number, line) for number, line in enumerate(lines, 1) if line.strip() and line.lstrip()[0] != "#"]
    if len(numbered) < 2 or numbered[-1][0] != len(lines) or not _PAIR.match(lines[-1]):
        return None
    *before, (above, line) = numbered[:-1]
    width, width_above = _width(lines[-1]), _width(line)
    at = Position(len(lines), width + 1)
    if width > width_above and _WORD.fullmatch(line):
        missing = Problem((), "is not YAML: a colon is missing", f"write {line.strip()}:")
        return Position(above, width_above + 1), missing
    if width > width_above and _PAIR.match(line) and not line.rstrip().endswith(":"):
        reason = f"is not YAML: it is indented by {width}, and line {above} by {width_above}"
        return at, Problem((), reason, f"indent it by {width_above}, like line {above}")
    outer = next((number for number, each in reversed(before) if _width(each) < width), None)
    if outer is None or width >= width_above or any(_width(each) == width for _, each in before):
        return None
    reason = f"is not YAML: it is indented by {width}, line {above} by {width_above}, and line {outer} by"
    return at, Problem((), f"{reason} {_width(lines[outer - 1])}", "indent it like one of them")


def _width(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def _advice_on_space(text: object) -> str | None:
    pair = pair_without_space(text)
    return pair and f"write a space after the colon: {pair[0]}: {shown(pair[1])}"


def _syntax_problem(error: yaml.MarkedYAMLError, text: str) -> tuple[Position, Problem]:
    mark = error.problem_mark or error.context_mark
    said = error.problem or error.context or "cannot be read"
    at = _position(mark) if mark else TOP
    line = next(islice(StringIO(text), at.line - 1, None), "")
    return at, Problem((), f"is not YAML: {shown(said, 200)}", _syntax_hint(said, line))


def _syntax_hint(said: str, line: str) -> str:
    if "\t" in line[: len(line) - len(line.lstrip())]:
        return "indent with spaces, not with tabs"
    if "mapping values are not allowed" in said:
        return "put quotes around a value that contains a colon and a space"
    if "alias" in said or "anchor" in said:
        return "write the value out, or put quotes around text that begins with * or &"
    if "cannot start any token" in said:
        return "put quotes around text that begins with a special character"
    return "check the indentation, the quotes and the brackets here"


def _position(mark: Any) -> Position:
    return Position(mark.line + 1, mark.column + 1)


class _Composer:
    """
    Builds nodes from the events of the parser. Stops early if the file is nested too deeply, has too many values, or
    has an alias that refers to itself, because such a file could take too much time or memory.
    """

    def __init__(self, text: str, begin: str) -> None:
        self.events: Iterator[Any] = map(self.noted, yaml.parse(text, Loader=_Parser))
        self.newest: Any = None
        self.begin = begin
        self.anchors: dict[str, _Node] = {}
        self.nodes = 0

    def noted(self, event: Any) -> Any:
        self.newest = event
        return event

    def root(self) -> _Node:
        next(self.events)
        first = next(self.events)
        if isinstance(first, yaml.StreamEndEvent):
            raise _Stop(TOP, "the file is empty", f"begin with {self.begin}")
        root = self.node(next(self.events), 0)
        next(self.events)
        after = next(self.events)
        if isinstance(after, yaml.DocumentStartEvent):
            raise _Stop(_position(after.start_mark), "a second document begins here", "keep one document per file")
        if root.kind == "scalar" and not root.content:
            raise _Stop(TOP, "the file is empty", f"begin with {self.begin}")
        return root

    def node(self, event: Any, depth: int) -> _Node:
        at = _position(event.start_mark)
        self.nodes += 1
        if depth > DEPTH_MAX or self.nodes > NODES_MAX:
            raise _Stop(at, f"holds more than {NODES_MAX} values or {DEPTH_MAX} levels", "write a smaller file")
        if isinstance(event, yaml.AliasEvent):
            return self.aliased(event, at)
        node = self.built(event, at, depth)
        if event.anchor:
            self.anchors[event.anchor] = node
        return node

    def aliased(self, event: Any, at: Position) -> _Node:
        anchored = self.anchors.get(event.anchor)
        if anchored is None:
            close = difflib.get_close_matches(event.anchor[:100], self.anchors, 1, cutoff=0.6)
            advice = f"did you mean *{shown(close[0])}?" if close else "write the value out"
            raise _Stop(at, f"*{shown(event.anchor)} has no anchor above it", advice)
        return anchored

    def built(self, event: Any, at: Position, depth: int) -> _Node:
        if isinstance(event, yaml.ScalarEvent):
            return _Node(event.value, "scalar", at, plain=event.implicit[0] and event.tag is None, tag=event.tag)
        if isinstance(event, yaml.SequenceStartEvent):
            items = [self.node(e, depth + 1) for e in self.until(yaml.SequenceEndEvent)]
            return _Node(items, "sequence", at, tag=event.tag)
        pairs = [
            (self.node(e, depth + 1), self.node(next(self.events), depth + 1)) for e in self.until(yaml.MappingEndEvent)
        ]
        return _Node(pairs, "mapping", at, tag=event.tag)

    def until(self, end: type) -> Iterator[Any]:
        while not isinstance(event := next(self.events), end):
            yield event


class _Constructor:
    """
    Builds data from nodes. If a value is refused, this records a problem of the document, and continues with the next
    value.
    """

    def __init__(self, document: Document) -> None:
        self.document = document
        self.values = 0

    def value(self, node: _Node, key: Key) -> Any:
        self.count(node.at, key)
        self.document.positions.setdefault(key, node.at)
        if node.tag is not None:
            self.refuse(key, f"the YAML tag {shown(node.tag)} is not allowed", "remove it")
        if isinstance(node.content, str):
            return self.scalar(node, node.content, key)
        if node.kind == "sequence":
            return [self.value(item, (*key, index)) for index, item in enumerate(node.content)]  # type: ignore[arg-type]
        return self.mapping(node.content, key)  # type: ignore[arg-type]

    def mapping(self, pairs: list[tuple[_Node, _Node]], key: Key) -> dict[str, Any]:
        read: dict[str, Any] = {}
        for name, item in self.merged(pairs, key):
            if not isinstance(name.content, str) or name.tag is not None:
                self.report(name.at, key, "a key here is not a plain word", "write key: value, without ? or tags")
                continue
            word = name.content
            pair = None if key[-1:] == NAMES_WITH_COLON_IN else pair_without_space(word)
            if pair and name.plain and not item.content and item.kind == "scalar":
                self.report(name.at, (*key, pair[0]), _NO_VALUE, f"write {': '.join(map(shown, pair))}, with a space")
                word, item = pair[0], replace(item, content=pair[1])
            if name.plain and (uncoloned := _NO_COLON.fullmatch(word)):
                below = (*key, uncoloned[1])
                self.report(name.at, below, "a colon is missing after it", f"write {uncoloned[1]}: {{…}}")
                self.document.unreadable.add(below)
                continue
            below = (*key, word)
            if word in read:
                first = self.document.positions[below].line
                self.report(name.at, below, f"duplicate key; it is already on line {first}", "keep one of them")
                continue
            self.document.positions[below] = name.at
            read[word] = self.value(item, below)
        return read

    def merged(self, pairs: list[tuple[_Node, _Node]], key: Key) -> list[tuple[_Node, _Node]]:
        """
        Return the pairs of a mapping, followed by the pairs that its merge key `<<` adds. If several mappings have the
        same key, the mapping's own value is used, or else that of the first mapping in `<<` that has the key.
        """
        found = [(name, item) for name, item in pairs if not name.merges]
        for count, (name, item) in enumerate(pair for pair in pairs if pair[0].merges):
            if count:
                self.report(name.at, (*key, "<<"), "duplicate key", "write one <<: [*FIRST, *SECOND]")
            sources: list[Any] = item.content if item.kind == "sequence" else [item]  # type: ignore[assignment]
            for source in sources:
                self.count(source.at, key)
                if source.kind == "mapping":
                    told = {name.content for name, _ in found if name.kind == "scalar"}
                    more = self.merged(source.content, key)
                    found += [pair for pair in more if pair[0].kind != "scalar" or pair[0].content not in told]
                else:
                    advice = "write <<: *NAME, where &NAME marks a mapping"
                    self.report(name.at, (*key, "<<"), "merges something that is not a mapping", advice)
        return found

    def count(self, at: Position, key: Key) -> None:
        self.values += 1
        if self.values > NODES_MAX:
            raise _Stop(at, f"its aliases unfold to more than {NODES_MAX} values", "write the values out", key)

    def scalar(self, node: _Node, text: str, key: Key) -> Any:
        tag = _resolver.resolve(yaml.ScalarNode, text, (True, False)).rpartition(":")[2] if node.plain else "str"
        if tag == "null":
            self.refuse(key, _NO_VALUE, "write one, or remove the line")
        elif tag == "bool":
            if text.lower() in ("true", "false"):
                return text.lower() == "true"
            if key[-2:] == OFF_IS_A_WORD_IN and text == "off":
                return text
            truth = "true" if text.lower() in ("yes", "on", "y") else "false"
            choices = ((truth == "true", f"{truth} for that"), (text, f'"{text}" for the text'))
            self.refuse(key, f"YAML reads {text} as {truth}", choices)
        elif tag == "int":
            if _INT.fullmatch(text):
                return int(text)
            self.refuse(key, *_surprise(text))
        elif tag == "float":
            if _FLOAT.fullmatch(text):
                return Decimal(text)
            self.refuse(key, *_surprise(text))
        return text

    def refuse(self, key: Key, message: str, instead: str | Choices) -> None:
        self.document.unreadable.add(key)
        choices = () if isinstance(instead, str) else instead
        suggestion = instead if isinstance(instead, str) else written_choices(instead)
        self.document.problems.append(
            (self.document.positions[key], Problem(key, message, suggestion, choices=choices))
        )

    def report(self, at: Position, key: Key, message: str, suggestion: str) -> None:
        self.document.problems.append((at, Problem(key, message, suggestion)))


def _surprise(text: str) -> tuple[str, str | Choices]:
    """Return why YAML would read a number in a surprising way, and what to write instead."""
    if ":" in text:
        length = "".join(f"{part}{unit}" for part, unit in zip(text.lstrip("+-").split(":"), "hms", strict=False))
        quoted = text, f'"{shown(text)}" in quotes for that time or text'
        return f"YAML reads {shown(text)} as a number to base 60", (quoted, (length, f"{shown(length)} for a duration"))
    if text.lower().lstrip("+-").startswith((".n", ".i")):
        return f"{shown(text)} is not a finite number", "write a number"
    if "_" in text:
        return f"{shown(text)} is read differently by different tools", f"write {shown(text.replace('_', ''))}"
    if re.match(r"[-+]?0[xXbBoO0-9]", text):
        decimal = text.lstrip("+-").lstrip("0")
        quoted = text, f'"{shown(text)}" for the text'
        plain = ((int(decimal), shown(decimal)),) if decimal.isdigit() else ()
        return f"YAML does not read {shown(text)} as a decimal number", (quoted, *plain)
    return f"the number {shown(text)} is too long", "write a shorter one, or put quotes around it"
