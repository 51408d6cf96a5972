"""
Inspects the functions of the script that run a training loop: their local variables, and how they left the loop.

spotrun cannot restore local variables. If the script later reads a variable whose value would be different in a resumed
process, this module reports it.
"""

from __future__ import annotations

import dis
import inspect
import os
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from types import CodeType, FrameType
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from spotrun.loop.bytecode import Assigned, clock_readings, live_at, read_after, rebound_in, stored_between
from spotrun.training.python_state.encoding import UntrackedChange
from spotrun.training.python_state.script import Script
from spotrun.training.python_state.values import is_scalar

POPS = ("POP_TOP", "POP_ITER")
"""
Instructions with which `break` and `return` discard a loop's iterator. When an exception leaves the loop, another
instruction discards it.
"""
YIELDS = ("YIELD_VALUE", "RESUME", "SEND", "JUMP_BACKWARD_NO_INTERRUPT")
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


UNBOUND = object()
PLAIN_MAX = 200
"""Maximum characters of a plain value, and items of a tensor, that are compared after a resume."""


class Rebound(NamedTuple):
    """
    A local variable to which a loop assigns values that are read later. `value` is what it held when the fit began, or
    what it holds now, or UNBOUND; `place` is the file and the line of one of the assignments.
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

    def name_of(self, value: object) -> str | None:
        """Return the name of a variable that holds the object `value` where the loop runs; None if there is none."""
        known = self._outer.f_globals | self._outer.f_locals
        return next((name for name, each in known.items() if each is value), None)

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
            yield from self._not_restored(frame, rebound_in(code, first, here))

    def read_afterwards(self) -> Iterator[Rebound]:
        """
        Yield each local variable to which the loop over the epochs or steps assigns a value, and that the code after
        this loop reads. A process that resumes after the end of the training has no such value.
        """
        code, frame = self._outer.f_code, self._outer
        if not _is_function(frame):
            return
        yield from self._not_restored(frame, read_after(code, self._began_at))

    def _not_restored(self, frame: FrameType, variables: Mapping[str, Assigned]) -> Iterator[Rebound]:
        for name, assigned in sorted(variables.items()):
            value = frame.f_locals.get(name, UNBOUND)
            restored = assigned.in_place and value is not UNBOUND and self._is_carried(value)
            if not restored and name not in self._clocks_in(frame):
                first = self._at_begin.get(name, value) if frame is self._outer else value
                yield Rebound(name, first, _place(frame.f_code, assigned.line))

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
