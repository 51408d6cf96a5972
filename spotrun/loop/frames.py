"""
Inspects the functions of the script that run a training loop: their local variables, and how they left the loop.

spotrun cannot restore local variables. If the script later reads a variable whose value would be different in a resumed
process, this module reports it.
"""

from __future__ import annotations

import dis
import inspect
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from functools import cache
from types import CodeType, FrameType
from typing import Any

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
ENDS = ("RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE", "JUMP_FORWARD", "JUMP_BACKWARD")
"""Instructions after which the code never continues with the next instruction."""
WHAT = "a local variable that the loop still reads; keep it in loop.state(…)"
CONTAINERS = (list, dict, set, deque)

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


class Frames:
    """
    The script's functions on the call stack during the loop of a fit. The outermost of them contains the loop.
    """

    def __init__(self) -> None:
        self._script = Script.of_this_process()
        outer = self._outer = self._first()
        self._began_at = -1
        self._at_begin: Values = dict(outer.f_locals) if _is_function(outer) else {}
        self._seen = {name: _seen(value) for name, value in self._at_begin.items()}
        self._at_pass: dict[int, tuple[FrameType, Values]] = {}

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
        training had been resumed at this point.

        `ended` is True if the loop's iterator has no next item, so that the code after the loop runs next.
        """
        for frame in self._running():
            at_begin = self._known(frame)
            for name in sorted(live_at(frame.f_code, frame.f_lasti, ended)):
                value = frame.f_locals.get(name)
                if name in frame.f_locals and at_begin.get(name) != _seen(value) and not self._is_carried(value):
                    yield UntrackedChange(f"{frame.f_code.co_name}().{name}", WHAT)

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
    """
    instructions = list(dis.get_instructions(code))
    numbers = {one.offset: number for number, one in enumerate(instructions)}
    live: list[frozenset[str]] = [frozenset()] * len(instructions)
    changed = True
    while changed:
        changed = False
        for number in range(len(instructions) - 1, -1, -1):
            one = instructions[number]
            after = frozenset[str]().union(*(live[each] for each in _next(one, number, numbers, len(instructions))))
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
    written = (_touched(one)[1] for one in dis.get_instructions(code) if first <= one.offset < last)
    return frozenset[str]().union(*written)


def _next(one: dis.Instruction, number: int, numbers: Mapping[int, int], count: int) -> Iterator[int]:
    if one.opcode in dis.hasjrel or one.opcode in dis.hasjabs:
        yield numbers[one.argval]
    if not one.opname.startswith(ENDS) and number + 1 < count:
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
