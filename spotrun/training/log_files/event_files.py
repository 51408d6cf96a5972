"""
Writes the pending events of a SummaryWriter to its files.

tensorboardX has a queue of events and a writer thread for each file. Its own `flush()` flushes the files, but not the
events that are still in a queue. So this module's `flush` puts a marker into each queue. When the thread takes out the
marker, it has written all earlier events.
"""

from __future__ import annotations

import importlib
import itertools
import threading
from typing import Any

from spotrun.errors import SpotrunError

ARRIVES_WITHIN_S = 60.0

_numbers = itertools.count()
_waiting: dict[int, threading.Event] = {}


def flush(writer: Any) -> None:
    """
    Write the pending events of `writer`, a SummaryWriter of tensorboardX or torch, to its files.

    Raises:
        SpotrunError: the writer's thread has stopped.
    """
    if type(writer).__module__.startswith("tensorboardX."):
        for file_writer in (writer.all_writers or {}).values():
            _wait_for_queue(file_writer)
    writer.flush()


def _wait_for_queue(file_writer: Any) -> None:
    number = next(_numbers)
    arrived = _waiting[number] = threading.Event()
    try:
        file_writer.event_writer.add_event(_Marker(number))
        if not arrived.wait(ARRIVES_WITHIN_S):
            raise SpotrunError(
                f"TensorBoard's writer of {file_writer.get_logdir()} has stopped writing",
                hint="is the disk full, or has the folder been removed?",
            )
    finally:
        del _waiting[number]


class _Marker:
    """An event for the queue. The queue pickles its events, and unpickling a marker calls `_arrive`."""

    def __init__(self, number: int) -> None:
        self._number = number

    def __reduce__(self) -> Any:
        return _arrive, (self._number,)


def _arrive(number: int) -> Any:
    """
    Report that all earlier events have been written. The thread that writes the file calls this function, and then
    writes its result, an empty event.
    """
    if number in _waiting:
        _waiting[number].set()
    return importlib.import_module("tensorboardX.proto.event_pb2").Event()
