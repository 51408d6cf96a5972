"""The line between agent and trainer: messages arrive whole, in order, with their own file descriptors."""

from __future__ import annotations

import contextlib
import os
import socket
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spotrun.trainer_link import (
    ArenaFree,
    Arenas,
    Arrived,
    Committed,
    DrainWanted,
    EpochEnded,
    Finished,
    Hello,
    LinkClosed,
    NotCarried,
    Progress,
    Resume,
    SnapshotTaken,
    TrainerLink,
)


@pytest.fixture
def ends():
    agent, trainer = map(TrainerLink, socket.socketpair())
    yield agent, trainer
    agent.close()
    trainer.close()


def memory(content: bytes) -> int:
    fd = os.memfd_create("test")
    os.write(fd, content)
    return fd


def received(link):
    message, fds = link.receive(5)
    contents = [os.pread(fd, 100, 0) for fd in fds]
    for fd in fds:
        os.close(fd)
    return message, contents


names = st.text(max_size=30)
metrics = st.dictionaries(names, st.floats(allow_nan=False, allow_infinity=False), max_size=5)
counts = st.integers(0, 2**53)
messages = st.one_of(
    st.builds(NotCarried, step=counts, places=st.lists(st.tuples(names, names), max_size=5).map(tuple)),
    st.builds(Hello, pid=counts, framework=names, torch=names, python=names),
    st.builds(
        Progress,
        epoch=counts,
        batch=counts,
        batches=counts,
        step=counts,
        epochs=counts,
        phase=st.sampled_from(["train", "validate"]),
        metrics=metrics,
    ),
    st.builds(
        SnapshotTaken,
        arena=counts,
        size_bytes=counts,
        epoch=counts,
        batch=counts,
        step=counts,
        stall_s=st.floats(0, 1e6),
        finite=st.booleans(),
        final=st.booleans(),
        epoch_ended=st.booleans(),
        metrics=metrics,
    ),
    st.builds(EpochEnded, epoch=counts, step=counts, batches=counts, samples=counts, metrics=metrics),
    st.builds(
        Resume,
        size_bytes=counts,
        epoch=counts,
        step=counts,
        every_steps=st.none() | counts,
        seed=counts,
        fresh=st.booleans(),
        here_bytes=st.none() | counts,
    ),
    st.builds(Arrived, size_bytes=counts),
    st.builds(DrainWanted, reason=st.text(max_size=2000)),
)


@pytest.mark.exhaustive
@settings(max_examples=60, deadline=None)
@given(st.lists(messages, min_size=1, max_size=8))
def test_messages_arrive_as_they_were_sent(sent):
    agent, trainer = map(TrainerLink, socket.socketpair())
    for message in sent:
        trainer.send(message)
    assert [agent.receive(5) for _ in sent] == [(message, []) for message in sent]
    assert agent.receive(0) is None
    agent.close()
    trainer.close()


def test_file_descriptors_stay_with_their_message(ends):
    agent, trainer = ends
    fds = [memory(name) for name in (b"a", b"b", b"c")]
    agent.send(Committed(step=1))
    agent.send(Arenas(size_bytes=1, starts=(0, 1)), fds[:2])
    agent.send(Committed(step=2))
    agent.send(Arenas(size_bytes=1, starts=(0,), first=2), fds[2:])
    for fd in fds:
        os.close(fd)
    assert [received(trainer) for _ in range(4)] == [
        (Committed(step=1), []),
        (Arenas(size_bytes=1, starts=(0, 1)), [b"a", b"b"]),
        (Committed(step=2), []),
        (Arenas(size_bytes=1, starts=(0,), first=2), [b"c"]),
    ]


def test_a_line_larger_than_the_socket_buffer_arrives(ends):
    agent, trainer = ends
    message = DrainWanted(reason="x" * 900_000)
    sender = threading.Thread(target=agent.send, args=(message,))
    sender.start()
    assert trainer.receive(10) == (message, [])
    sender.join(5)


def test_threads_may_send_at_once(ends):
    agent, trainer = ends

    def send(first):
        for n in range(50):
            trainer.send(ArenaFree(arena=first + n))

    threads = [threading.Thread(target=send, args=(k * 1000,)) for k in range(4)]
    for thread in threads:
        thread.start()
    got = [agent.receive(5)[0].arena for _ in range(200)]
    for thread in threads:
        thread.join()
    assert sorted(got) == sorted(k * 1000 + n for k in range(4) for n in range(50))
    assert [n for n in got if n < 1000] == list(range(50))


def test_a_timeout_is_not_an_end(ends):
    agent, trainer = ends
    assert agent.receive(0.01) is None
    trainer.send(Finished(step=3, epoch=1))
    assert agent.receive(None) == (Finished(step=3, epoch=1), [])


def test_message_sent_before_the_other_end_died_is_still_read(ends):
    agent, trainer = ends
    trainer.send(Finished(step=3, epoch=1))
    trainer.close()
    assert agent.receive(5) == (Finished(step=3, epoch=1), [])
    with pytest.raises(LinkClosed):
        agent.receive(5)
    with pytest.raises(LinkClosed):
        agent.send(Committed(step=1))


@pytest.mark.parametrize(
    "line",
    [
        b"{}\n",
        b"no json\n",
        b'{"fds":0,"message":{"type":"Unknown"}}\n',
        b'{"fds":3,"message":{"type":"Committed","step":1}}\n',
        b'{"fds":0,"message":{"type":"Committed","step":"x"}}\n',
        b"\xff\xfe\n",
    ],
)
def test_another_language_closes_the_link(line):
    left, right = socket.socketpair()
    link = TrainerLink(left)
    right.sendall(line)
    with pytest.raises(LinkClosed):
        link.receive(5)
    link.close()
    right.close()


def test_an_endless_line_closes_the_link():
    left, right = socket.socketpair()
    link = TrainerLink(left)
    right.settimeout(0.2)

    def flood():
        with contextlib.suppress(OSError):
            while True:
                right.sendall(b"x" * 100_000)

    thread = threading.Thread(target=flood)
    thread.start()
    with pytest.raises(LinkClosed):
        link.receive(5)
    thread.join()
    link.close()
    right.close()
