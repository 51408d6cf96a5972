"""
Analyses the bytecode of the script's functions: which local variables a loop writes, and which the code reads later.
"""

from __future__ import annotations

import datetime
import dis
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from types import BuiltinFunctionType, CodeType, ModuleType
from typing import Any, NamedTuple

_PADDING = ("CACHE", "PRECALL", "PUSH_NULL", "RESUME", "NOP", "EXTENDED_ARG")
ENDS = ("RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE", "JUMP_FORWARD", "JUMP_BACKWARD")
"""Instructions after which the code never continues with the next instruction."""
CLOCKS = (
    time.time, time.time_ns, time.monotonic, time.monotonic_ns, time.perf_counter, time.perf_counter_ns,
    time.process_time, time.process_time_ns, datetime.datetime.now, datetime.datetime.utcnow,
)  # fmt: skip
"""Functions whose results differ in each process, interrupted or not."""


@cache
def live_at(code: CodeType, offset: int, ended: bool) -> frozenset[str]:
    """
    Return the local variables that are live at the instruction at `offset`: the code that follows may read them before
    it writes to them.

    `ended` matters only if this instruction requests the next item of a loop. It is True if the loop has no next item,
    and therefore ends.

    Every `for` loop that begins later is taken to run at least once. Otherwise, a variable that only the body of such a
    loop writes, like `loss` in a loop over batches, would count as read before it is written.
    """
    instructions = instructions_of(code)
    numbers = {one.offset: number for number, one in enumerate(instructions)}
    exits = {one.offset: one.argval for one in instructions if one.opname == "FOR_ITER"}
    live: list[frozenset[str]] = [frozenset()] * len(instructions)
    changed = True
    while changed:
        changed = False
        for number in range(len(instructions) - 1, -1, -1):
            one = instructions[number]
            after = frozenset[str]().union(*(live[each] for each in _next(one, number, numbers, exits)))
            read, written = _touched(one)
            before = read | (after - written)
            changed = changed or before != live[number]
            live[number] = before
    # `offset` may point into the inline cache after an instruction. So take the last instruction that starts at or
    # before `offset`.
    number = max(number for number, one in enumerate(instructions) if one.offset <= offset)
    if instructions[number].opname == "FOR_ITER":
        return live[numbers[instructions[number].argval]] if ended else live[number + 1]
    return live[number]


@cache
def stored_between(code: CodeType, first: int, last: int) -> frozenset[str]:
    written = (_touched(one)[1] for one in instructions_of(code) if first <= one.offset < last)
    return frozenset[str]().union(*written)


class Assigned(NamedTuple):
    """
    The assignments of a loop to a variable: the line of one of them, and whether all of them change the variable's
    object in place (`+=`), if its class can do that.
    """

    line: int
    in_place: bool


@cache
def instructions_of(code: CodeType) -> list[dis.Instruction]:
    """
    Return the instructions without EXTENDED_ARG, which precedes another instruction and is a part of it. Jumps to such
    a part lead to the instruction itself.
    """
    every = list(dis.get_instructions(code))
    real: dict[int, int] = {}
    following = 0
    for one in reversed(every):
        following = following if one.opname == "EXTENDED_ARG" else one.offset
        real[one.offset] = following
    return [_led_to(one, real) for one in every if one.opname != "EXTENDED_ARG"]


def _led_to(one: dis.Instruction, real: Mapping[int, int]) -> dis.Instruction:
    jumps = one.opcode in dis.hasjrel or one.opcode in dis.hasjabs
    return one._replace(argval=real[one.argval]) if jumps else one


@cache
def rebound_in(code: CodeType, first: int, here: int) -> Mapping[str, Assigned]:
    """
    Return the local variables that a loop around the instruction at `here` writes, and that are read later, before they
    are written again: in the next iteration, or after the loop. Loops that begin before `first` are not included.
    """
    found: dict[str, Assigned] = {}
    first = max((one.offset for one in instructions_of(code) if one.offset <= first), default=0)
    for head, end in _loops(code):
        if first <= head <= here <= end:
            found |= _assigned(code, head, end, live_at(code, head, False))
    return found


@cache
def read_after(code: CodeType, first: int) -> Mapping[str, Assigned]:
    """Return the local variables that the `for` loop at `first` writes, and that the code after it reads."""
    head = max((one.offset for one in instructions_of(code) if one.offset <= first), default=0)
    ends = dict(_loops(code))
    return _assigned(code, head, ends[head], live_at(code, head, True)) if head in ends else {}


def _assigned(code: CodeType, head: int, end: int, names: frozenset[str]) -> dict[str, Assigned]:
    found: dict[str, Assigned] = {}
    before = None
    for one in instructions_of(code):
        if head <= one.offset <= end:
            in_place = before is not None and before.opname == "BINARY_OP" and before.argrepr.endswith("=")
            for name in _touched(one)[1] & names:
                line = (one.positions.lineno if one.positions else None) or code.co_firstlineno
                known = found.get(name, Assigned(line, True))
                found[name] = Assigned(known.line, known.in_place and in_place)
        before = one
    return found


def _loops(code: CodeType) -> Iterator[tuple[int, int]]:
    """Yield the offsets of each loop's first and last instruction."""
    ends: dict[int, int] = {}
    for one in instructions_of(code):
        if "JUMP_BACKWARD" in one.opname and not one.opname.endswith("NO_INTERRUPT"):
            ends[one.argval] = max(one.offset, ends.get(one.argval, 0))
    yield from ends.items()


def clock_readings(code: CodeType, names: Mapping[str, Any]) -> frozenset[str]:
    """
    Return the local variables that hold only readings of a clock. `names` has the global objects that the code reads.
    """
    steps = list(_single_steps(code))
    written: dict[str, list[bool | str]] = {}
    for number, (kind, name) in enumerate(steps):
        if kind == "STORE_FAST":
            written.setdefault(name, []).append(_source(steps, number, names))
    clocks = {name for name, sources in written.items() if all(sources)}
    while wrong := {n for n in clocks if any(not (s is True or s in clocks) for s in written[n])}:
        clocks -= wrong
    return frozenset(clocks)


def _single_steps(code: CodeType) -> Iterator[tuple[str, Any]]:
    """Yield the kind and the argument of each instruction. Python 3.13 joins some that read and write variables."""
    for one in instructions_of(code):
        if isinstance(one.argval, tuple) and "_FAST_" in one.opname:
            kinds = ("LOAD_FAST" if part.startswith("LOAD") else "STORE_FAST" for part in one.opname.split("_FAST_"))
            yield from zip(kinds, one.argval, strict=False)
        elif one.opname not in _PADDING:
            yield one.opname, one.arg if one.opname.startswith("CALL") else one.argval


def _source(steps: Sequence[tuple[str, Any]], number: int, names: Mapping[str, Any]) -> bool | str:
    """
    Return True if the step with this number stores the result of a clock, called without arguments; the name of the
    variable if it stores the value of another variable; else False.
    """
    before = number - 1
    if steps[before][0] == "LOAD_FAST":
        return str(steps[before][1])
    while before > 0 and steps[before][0] in ("COPY", "STORE_FAST"):  # t0 = t1 = time.time()
        before -= 1
    if not steps[before][0].startswith("CALL") or steps[before][1] != 0:
        return False
    parts: list[str] = []
    for kind, name in reversed(steps[:before]):
        if kind in ("LOAD_GLOBAL", "LOAD_NAME"):
            value: Any = names.get(name)
            for part in reversed(parts):
                value = getattr(value, part, None) if isinstance(value, ModuleType | type) else None
            return type(value) is BuiltinFunctionType and value in CLOCKS
        if kind not in ("LOAD_ATTR", "LOAD_METHOD"):
            return False
        parts.append(name)
    return False


def _next(one: dis.Instruction, number: int, numbers: Mapping[int, int], exits: Mapping[int, int]) -> Iterator[int]:
    """
    Yield the numbers of the instructions that may follow. `exits` has the offset of the code after each `for` loop. It
    follows the loop's last instruction, not its first.
    """
    if (one.opcode in dis.hasjrel or one.opcode in dis.hasjabs) and one.offset not in exits:
        yield numbers[one.argval]
        if one.argval in exits and one.argval < one.offset:
            yield numbers[exits[one.argval]]
    if not one.opname.startswith(ENDS) and number + 1 < len(numbers):
        yield number + 1


def _touched(one: dis.Instruction) -> tuple[frozenset[str], frozenset[str]]:
    """Return the variables that an instruction reads, and the variables that it writes."""
    name = one.opname
    if not name.startswith(("LOAD_FAST", "STORE_FAST", "DELETE_FAST", "LOAD_DEREF", "STORE_DEREF", "LOAD_CLOSURE")):
        return frozenset(), frozenset()
    names = one.argval if isinstance(one.argval, tuple) else (one.argval,)
    if name == "STORE_FAST_LOAD_FAST":
        return frozenset(names[1:]) - {names[0]}, frozenset(names[:1])
    if name.startswith("LOAD_") and name != "LOAD_FAST_AND_CLEAR":
        return frozenset(names), frozenset()
    return frozenset(), frozenset(names)
