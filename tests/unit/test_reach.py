"""Whether a member of a gang reaches another one: real sockets, of which some answer and others do not."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime

import pytest

from spotrun.agent.gang import connectivity
from spotrun.agent.gang.connectivity import Connectivity, Door, DoorAddress
from spotrun.clock import ScaledClock
from spotrun.run.gang import MemberName
from tests.support.eventually import eventually

HERE = "127.0.0.1"
ONE, TWO = MemberName(1, 1), MemberName(1, 2)


@pytest.fixture
def stack(monkeypatch: pytest.MonkeyPatch) -> Iterator[ExitStack]:
    monkeypatch.setattr(connectivity, "UNREACHED_MIN_S", 0.5)
    monkeypatch.setattr(connectivity, "TRIES_EVERY_MIN_S", 0.02)
    monkeypatch.setattr(connectivity, "ANSWERS_WITHIN_S", 0.2)
    with ExitStack() as stack:
        yield stack


def open_door(stack: ExitStack, port: int = 0) -> Door:
    door = Door(HERE, port)
    stack.callback(door.close)
    return door


def begin(stack: ExitStack, doors: dict[MemberName, DoorAddress]) -> Connectivity:
    tried = Connectivity(ScaledClock(datetime.now(UTC), 600.0), doors)
    stack.callback(tried.close)
    tried.start()
    return tried


def silent_place(stack: ExitStack) -> DoorAddress:
    """Whoever connects hears nothing, as from a host that is gone: its queue of connections is full."""
    full = stack.enter_context(socket.socket())
    full.bind((HERE, 0))
    full.listen(0)
    address = full.getsockname()
    for _ in range(4):
        waiting = stack.enter_context(socket.socket())
        waiting.setblocking(False)
        waiting.connect_ex(address)
    return DoorAddress(*address)


def test_a_door_that_is_shut_and_a_host_that_is_silent_are_not_reached(stack: ExitStack):
    shut = Door(HERE)
    shut.close()
    for place in (DoorAddress(HERE, shut.port), silent_place(stack)):
        tried = begin(stack, {ONE: DoorAddress(HERE, open_door(stack).port), TWO: place})
        assert tried.unreached == ()
        assert eventually(lambda tried=tried: tried.unreached) == (TWO,)


def test_member_that_answers_again_is_reached(stack: ExitStack):
    first = Door(HERE)
    tried = begin(stack, {ONE: DoorAddress(HERE, first.port)})
    first.close()
    eventually(lambda: tried.unreached == (ONE,))
    again = open_door(stack, first.port)
    assert again.port == first.port, "an agent that was started again is where the others look for it"
    eventually(lambda: tried.unreached == ())


def test_a_door_whose_port_another_program_has_is_at_another_one(stack: ExitStack):
    taken = open_door(stack)
    assert open_door(stack, taken.port).port not in (0, taken.port)


def test_an_address_of_another_machine_has_no_door():
    with pytest.raises(OSError, match=r".+"):
        Door("192.0.2.1")


def test_a_door_takes_any_number_of_callers(stack: ExitStack):
    door = open_door(stack)
    for _ in range(3 * connectivity.BACKLOG):
        with socket.create_connection((HERE, door.port), 10) as caller:
            caller.settimeout(10)
            assert caller.recv(1) == b""


def test_when_trainers_begin_again_everybody_has_all_of_its_time_again(stack: ExitStack):
    tried = begin(stack, {TWO: silent_place(stack)})
    eventually(lambda: tried.unreached == (TWO,))
    tried.begins()
    assert tried.unreached == ()
