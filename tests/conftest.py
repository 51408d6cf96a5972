"""Fixtures that several files share."""

from __future__ import annotations

import contextlib
import functools
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.local_runs import Site
from tests.object_stores import FakeGcs, RunningServer, SeaweedFS, running

# Who starts the tests in the background of a script has them, and all that they start, ignore Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)

SERVERS = {"s3": SeaweedFS, "gs": FakeGcs}


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """A place to launch runs from; whatever is left of them goes with the test."""
    place = Site(tmp_path, monkeypatch)
    yield place
    place.close()


@pytest.fixture(scope="session")
def servers() -> Iterator[Callable[[str], RunningServer]]:
    """An object store of each scheme, "s3" or "gs", from when it is first asked for until all tests are over."""
    with contextlib.ExitStack() as stack:
        yield functools.cache(lambda scheme: stack.enter_context(running(SERVERS[scheme]())))


@pytest.fixture(params=SERVERS)
def bucket(
    request: pytest.FixtureRequest, servers: Callable[[str], RunningServer], monkeypatch: pytest.MonkeyPatch
) -> RunningServer:
    """Each of them in turn, with what a client needs in the environment."""
    server = servers(request.param)
    server.reach(monkeypatch)
    return server
