"""Fixtures that several rooms share. What they need is imported when a test first asks for them."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from tests.support.repository import ROOT

if TYPE_CHECKING:
    from spotrun.clouds.aws.driver import AwsDriver
    from tests.support.ec2_server import Ec2Account
    from tests.support.google_server import GoogleServer
    from tests.support.guarded_account import GuardedAccount
    from tests.support.object_stores import RunningServer
    from tests.support.sandbox import Sandbox
    from tests.support.trainings.trainers import Zygote

# Who starts the tests in the background of a script, or by nohup, has them and all that they start ignore these.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# moto makes each of its 1,300 images anew whenever it is reset; two are enough.
os.environ["MOTO_AMIS_PATH"] = str(ROOT / "tests" / "support" / "ec2_images.json")

# pytest imports readline, which gives each process that we start a width: spotrun would fold what it prints to that.
os.environ.pop("COLUMNS", None)
os.unsetenv("COLUMNS")

# How long an example takes is the machine's affair: 200 ms pass soon where three workers share two cores.
settings.register_profile("patient", settings.default, deadline=None)
settings.load_profile("patient")

SCHEMES = ("s3", "gs")


@pytest.fixture(scope="session", autouse=True)
def _known_runs(tmp_path_factory: pytest.TempPathFactory) -> None:
    """What tests launch is not remembered for the person who runs them."""
    os.environ["SPOTRUN_KNOWN"] = str(tmp_path_factory.mktemp("known"))


@pytest.fixture
def sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sandbox]:
    """A place to launch runs from. Whatever is left of them ends with the test."""
    from tests.support.sandbox import Sandbox

    place = Sandbox(tmp_path, monkeypatch)
    yield place
    place.close()


@pytest.fixture(scope="session")
def servers() -> Iterator[Callable[[str], RunningServer]]:
    """An object store of each scheme, "s3" or "gs", from when it is first asked for until all tests are over."""
    from tests.support.object_stores import FakeGcs, SeaweedFS, running

    kinds = {"s3": SeaweedFS, "gs": FakeGcs}
    with contextlib.ExitStack() as stack:
        yield functools.cache(lambda scheme: stack.enter_context(running(kinds[scheme]())))


@pytest.fixture(scope="session")
def zygote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zygote]:
    """One for all files: what it imports takes five seconds, and no test changes what it does."""
    from tests.support.trainings.trainers import Zygote
    from tests.support.trainings.zygote import TRANSFORMERS

    zygote = Zygote(tmp_path_factory.mktemp("zygote"), TRANSFORMERS)
    yield zygote
    zygote.close()


@pytest.fixture(params=SCHEMES)
def bucket(
    request: pytest.FixtureRequest, servers: Callable[[str], RunningServer], monkeypatch: pytest.MonkeyPatch
) -> RunningServer:
    """Each of them in turn, with what a client needs in the environment."""
    server = servers(request.param)
    server.reach(monkeypatch)
    return server


@pytest.fixture
def account(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ec2Account]:
    """An EC2 account on this machine, furnished, which boto3 finds through the environment."""
    with _guarded_account() as account:
        account.reach(monkeypatch)
        account.furnish()
        yield account
        assert account.denied == []  # the policy that we ship allows every call of these tests


@pytest.fixture(scope="module")
def account_of_module() -> Iterator[GuardedAccount]:
    """One for all tests of a module, which make it as new for each: making clients for it is what takes time."""
    with _guarded_account() as account:
        yield account


def _guarded_account() -> GuardedAccount:
    from spotrun.clock import ScaledClock
    from tests.support.guarded_account import GuardedAccount

    return GuardedAccount(ScaledClock(datetime.now(UTC), 1.0))


@pytest.fixture
def cloud(account: Ec2Account) -> AwsDriver:
    """A driver for it, on a clock that stands still."""
    from spotrun.clouds.aws.driver import AwsDriver
    from tests.support.aws_launches import CONFIG
    from tests.support.manual_clock import ManualClock

    return AwsDriver(CONFIG, ManualClock(datetime.now(UTC)))


@pytest.fixture
def gce() -> Iterator[GoogleServer]:
    """A project of Google Cloud on this machine, by a clock that stands still until a test or a wait moves it."""
    from tests.support.google_server import GoogleServer
    from tests.support.manual_clock import ManualClock

    with GoogleServer(ManualClock(datetime.now(UTC))) as server:
        yield server
