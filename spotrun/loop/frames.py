"""
Inspects the functions of the script that run a training loop: their local variables, and how they left the loop.

spotrun cannot restore local variables. If the script later reads a variable whose value would be different in a resumed
process, this module reports it.
"""

from __future__ import annotations

import datetime
import dis
import inspect
import os
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from types import BuiltinFunctionType, CodeType, FrameType, ModuleType
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from spotrun.training.python_state.encoding import UntrackedChange
from spotrun.training.python_state.script import Script
from spotrun.training.python_state.values import is_scalar

POPS = ("POP_TOP", "POP_ITER")
"""
Instructions with which `break` and `return` discard a loop's iterator. When an exception leaves the loop, another
instruction discards it.
"""
YIELDS = ("YIELD_VALUE", "RESUME", "SEND", "JUMP_BACKWARD_NO_INTERRUPT")
_PADDING = ("CACHE", "PRECALL", "PUSH_NULL", "RESUME", "NOP", "EXTENDED_ARG")
ENDS = ("RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE", "JUMP_FORWARD", "JUMP_BACKWARD")
"""Instructions after which the code never continues with the next instruction."""
WHAT = "a local variable that the loop still reads; keep it in loop.state(…)"
CONTAINERS = (list, dict, set, deque)
CLOCKS = (
    time.time, time.time_ns, time.monotonic, time.monotonic_ns, time.perf_counter, time.perf_counter_ns,
    time.process_time, time.process_time_ns, datetime.datetime.now, datetime.datetime.utcnow,
)  # fmt: skip
"""Functions whose results differ in each process, interrupted or not."""

Values = Mapping[str, Any]


def left_well(frame: FrameType | None) -> bool:
    """
    Return True if the script left the loop with `break` or `return`, and False if an exception ended the loop.

    The loop's iterator is a generator. When the script leaves the loop, Python closes this generator, which then calls
    this function. `frame` is the frame from which Python closed the generator. Usually this is the frame of the
    script's function with the loop. But if a library, such as a progress bar, has wrapped the generator in its own
    generator, it is the frame of the library's generator. This function skips such frames.
    """
    while frame is not None:
        name = dis.opname[frame.f_code.co_code[frame.f_lasti]]
        if name in POPS:
            return True
        if not (frame.f_code.co_flags & inspect.CO_GENERATOR and name in YIELDS):
            return False
        frame = frame.f_back
    return False


UNBOUND = object()
PLAIN_MAX = 200
"""Maximum characters of a plain value, and items of a tensor, that are compared after a resume."""


class Rebound(NamedTuple):
    """
    A local variable to which a loop assigns values that are read later. `value` is what it holds now, or UNBOUND;
    `place` is the file and the line of one of the assignments.
    """

    name: str
    value: Any
    place: str


class Frames:
    """
    The script's functions on the call stack during the loop of a fit. The outermost of them contains the loop.
    """

    def __init__(self) -> None:
        self._script = Script.of_this_process()
        outer = self._outer = self._first()
        self._began_at = -1
        self._at_begin: Values = _needed(outer) if _is_function(outer) else {}
        self._seen = {name: _seen(value) for name, value in self._at_begin.items()}
        self._at_pass: dict[int, tuple[FrameType, Values]] = {}
        self._looked: set[tuple[CodeType, int]] = set()
        self._clocks: dict[CodeType, frozenset[str]] = {}

    @property
    def name(self) -> str:
        return f"{self._outer.f_code.co_name}()"

    def variables(self) -> Values:
        """
        Return the outermost function's variables as they were when the fit began. A resume loads the saved state into
        the objects that these variables hold.
        """
        return self._at_begin

    def epoch_begins(self) -> None:
        self._at_pass = {}
        self._began_at = self._outer.f_lasti

    def pass_begins(self) -> None:
        self._at_pass = {
            id(frame): (frame, {name: _seen(value) for name, value in frame.f_locals.items()})
            for frame in self._running()
        }

    def lost(self, *, ended: bool) -> Iterator[UntrackedChange]:
        """
        Yield each local variable that the script will read later, and whose value would then be different if the
        training had been resumed at this point. Readings of a clock are not included.

        `ended` is True if the loop's iterator has no next item, so that the code after the loop runs next.
        """
        for frame in self._running():
            at_begin = self._known(frame)
            for name in sorted(live_at(frame.f_code, frame.f_lasti, ended) - self._clocks_in(frame)):
                value = frame.f_locals.get(name)
                if name in frame.f_locals and at_begin.get(name) != _seen(value) and not self._is_carried(value):
                    yield UntrackedChange(f"{frame.f_code.co_name}().{name}", WHAT)

    def rebound(self) -> Iterator[Rebound]:
        """
        Yield each local variable to which the running loops assign a value that a later iteration reads. A resumed
        process has the variable's first value there, or none. Each place of the code is inspected once.

        Not included are readings of a clock, which differ in an uninterrupted training, too; and objects that a resume
        restores, and that the loop only changes in place, as in `losses += [loss]`.
        """
        for frame in self._running():
            code, here = frame.f_code, frame.f_lasti
            if (code, here) in self._looked:
                continue
            self._looked.add((code, here))
            first = self._began_at if frame is self._outer else 0
            for name, assigned in sorted(rebound_in(code, first, here).items()):
                value = frame.f_locals.get(name, UNBOUND)
                restored = assigned.in_place and value is not UNBOUND and self._is_carried(value)
                if not restored and name not in self._clocks_in(frame):
                    yield Rebound(name, value, _place(code, assigned.line))

    def read_afterwards(self) -> Iterator[Rebound]:
        """
        Yield each local variable to which the loop over the epochs or steps assigns a value, and that the code after
        this loop reads. A process that resumes after the end of the training has no such value.
        """
        code, frame = self._outer.f_code, self._outer
        if not _is_function(frame):
            return
        for name, assigned in sorted(read_after(code, self._began_at).items()):
            if name not in self._clocks_in(frame) and not (
                assigned.in_place and self._is_carried(frame.f_locals.get(name))
            ):
                yield Rebound(name, frame.f_locals.get(name, UNBOUND), _place(code, assigned.line))

    def before_pass(self) -> dict[str, str]:
        """
        Return the plain local variables that the code between the beginning of the epoch and the pass has set, and that
        are read later, by names such as `main().start`. A resume repeats this code.
        """
        found: dict[str, str] = {}
        for frame in self._running():
            code, here = frame.f_code, frame.f_lasti
            names = live_at(code, here, False) - self._clocks_in(frame)
            if frame is self._outer:
                names &= stored_between(code, self._began_at, here)
            values = ((name, _plain(frame.f_locals[name])) for name in names if name in frame.f_locals)
            found |= {f"{code.co_name}().{name}": text for name, text in values if text}
        return found

    def _clocks_in(self, frame: FrameType) -> frozenset[str]:
        code = frame.f_code
        if code not in self._clocks:
            self._clocks[code] = clock_readings(code, {name: frame.f_globals.get(name) for name in code.co_names})
        return self._clocks[code]

    def _known(self, frame: FrameType) -> Values:
        """
        Return the variables that `frame` would have in a resumed process at its first batch, as fingerprints of their
        values (`_seen`).

        By then, the resumed script has run the code before the loop and, in the current epoch, the code before the
        pass.
        """
        _, at_pass = self._at_pass.get(id(frame), (frame, {}))
        if frame is not self._outer:
            return at_pass
        again = stored_between(frame.f_code, self._began_at, frame.f_lasti) if at_pass else frozenset()
        return self._seen | {name: value for name, value in at_pass.items() if name in again}

    def _is_carried(self, value: object) -> bool:
        """
        Return True if `value` is an object that was already in a variable when the fit began. A resume restores the
        contents of such objects, so they do not count as lost.
        """
        return not is_scalar(value) and any(value is one for one in self._at_begin.values())

    def _first(self) -> FrameType:
        frame = caller = sys._getframe(2)
        while frame.f_globals.get("__name__") not in self._script.modules:
            if frame.f_back is None:
                return caller
            frame = frame.f_back
        return frame

    def between(self) -> Iterator[FrameType]:
        """Yield the frames between the caller and the script."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_globals.get("__name__") not in self._script.modules:
            yield frame
            frame = frame.f_back

    def _running(self) -> Iterator[FrameType]:
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            if _is_function(frame) and frame.f_globals.get("__name__") in self._script.modules:
                yield frame
            if frame is self._outer:
                return
            frame = frame.f_back


def _needed(frame: FrameType) -> Values:
    """
    Return the variables of the frame, without plain values that are not read any more. A resumed process may lack
    these, because an earlier loop has set them.
    """
    code = frame.f_code
    read = live_at(code, frame.f_lasti, False) | {*code.co_cellvars, *code.co_freevars}
    return {name: value for name, value in frame.f_locals.items() if name in read or not _is_data(value)}


def _is_data(value: Any, depth: int = 3) -> bool:
    """Return True for scalars, tensors and arrays, and for short containers of them."""
    if is_scalar(value) or isinstance(value, Tensor | np.ndarray):
        return True
    if type(value) not in (list, tuple, dict) or not depth or len(value) > PLAIN_MAX:
        return False
    return all(_is_data(part, depth - 1) for part in (value.values() if type(value) is dict else value))


def _place(code: CodeType, line: int) -> str:
    return f"{os.path.basename(code.co_filename)}:{line}"


def _plain(value: Any) -> str:
    """Return a text that is different for another scalar or small tensor; "" for any other value."""
    if is_scalar(value):
        return repr(value)[:PLAIN_MAX]
    if isinstance(value, Tensor) and value.device.type == "cpu" and value.numel() <= PLAIN_MAX:
        return repr(value.detach().tolist())
    return ""


def _is_function(frame: FrameType) -> bool:
    """
    Return True if `frame` runs a function. If it runs a module, its variables are globals, which a resume restores.
    """
    return bool(frame.f_code.co_flags & inspect.CO_OPTIMIZED)


def _seen(value: Any) -> Any:
    """
    Return a fingerprint of a variable's value. If it is different later, the value has changed.

    The fingerprint of a plain value is the value itself. That of an object consists of its identity and of what is
    cheap to compare: its length, its version counter, or its plain attributes.
    """
    if is_scalar(value):
        return type(value), repr(value)
    if isinstance(value, Tensor):
        return id(value), value._version
    if isinstance(value, np.ndarray):
        return id(value), value.tobytes() if value.nbytes <= 4096 and not value.dtype.hasobject else None
    if isinstance(value, CONTAINERS):
        return id(value), len(value)
    plain = ((name, repr(part)) for name, part in getattr(value, "__dict__", {}).items() if is_scalar(part))
    return id(value), tuple(plain)


# --- analysis of the code


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
