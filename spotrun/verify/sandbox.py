"""The store and the local cloud that one verification uses."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from msgspec.structs import replace

from spotrun.clock import ScaledClock, system_clock
from spotrun.clouds.local.catalog import INSTANCE_TYPES
from spotrun.clouds.local.config import MarketConfig
from spotrun.clouds.local.driver import LocalDriver


class Sandbox:
    """
    A context manager with a store and a local cloud. Enter it before the first run. Leaving it ends every instance,
    even after Ctrl-C and SIGTERM, and removes all files unless `keep` is true.
    """

    def __init__(self, *, keep: bool) -> None:
        self._keep = keep
        self.folder = Path(tempfile.mkdtemp(prefix="spotrun-verify-"))
        self.store = self.folder / "runs"
        self._root = self.folder / "cloud"
        self.instances = LocalDriver(self._root, system_clock()).folder(f"i-{0:017}").parent

    def __enter__(self) -> Self:
        signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
        return self

    def __exit__(self, *_: object) -> None:
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # so that a second Ctrl-C leaves nothing running
        try:
            self._end_instances()
            if not self._keep:
                shutil.rmtree(self.folder)
        finally:
            signal.signal(signal.SIGINT, before)

    def cloud(self, clock: ScaledClock, market: MarketConfig) -> LocalDriver:
        return LocalDriver(self._root, clock, market)

    def _end_instances(self) -> None:
        cloud = LocalDriver(self._root, system_clock())
        for instance in cloud.instances():
            if instance.alive:
                cloud.terminate(instance.instance_id)


def market_of(boot_s: float, accelerators: int | None) -> MarketConfig:
    """
    Return the market of a verification. If `accelerators` is given, its only type of instance has this many of them.
    """
    market = MarketConfig(boot_s=boot_s)
    if accelerators is None:
        return market
    kind = replace(INSTANCE_TYPES[0], name=f"of-{accelerators}", accelerators=f"V100:{accelerators}")
    return replace(market, instance_types=(kind,))


@contextmanager
def environment(variables: Mapping[str, str]) -> Iterator[None]:
    """
    Set environment variables for the instances that are launched inside the `with` block. The job cannot set them
    itself, because their names begin with SPOTRUN_.
    """
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
