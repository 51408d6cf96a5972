"""
Bad lines and sudden ends: wrappers around the ports of a run, and the seeded faults of a world that they are made of.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from spotrun.clouds.driver import CloudDriver
from spotrun.errors import CloudUnavailable, StoreUnavailable
from spotrun.store.port import Store
from tests.support.manual_clock import ManualClock
from tests.support.world.rng import Range, Rng


class LossyStore:
    """
    Another store, reached over a bad line.

    `fate` is asked at each put_if_absent: "ok"; "answer lost" after it was done; "lost" before; "denied", the store
    saying that something is there although it was this writer who put it, or nobody.
    """

    def __init__(self, store: Store, fate: Callable[[], str]) -> None:
        self.uri = store.uri
        self._store = store
        self._fate = fate
        self.put, self.put_status, self.get = store.put, store.put_status, store.get
        self.list, self.folders, self.delete = store.list, store.folders, store.delete

    def put_if_absent(self, key: str, data: bytes) -> bool:
        fate = self._fate()
        if fate == "lost":
            raise StoreUnavailable("connection reset")
        if fate == "denied for nothing":
            return False  # S3's 409: another put was under way, and failed
        created = self._store.put_if_absent(key, data)
        if fate == "answer lost":
            raise StoreUnavailable("connection reset")
        return created and fate != "denied"


class Watched:
    """
    Any object, with `before(name)` called ahead of each call of a method and `after(name)` behind it. Either may raise:
    behind it, the effect is there and its answer is lost.
    """

    def __init__(self, inner: Any, before: Callable[[str], None], after: Callable[[str], None]) -> None:
        self._inner, self._before, self._after = inner, before, after

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if not callable(found):
            return found

        def call(*args: Any, **more: Any) -> Any:
            self._before(name)
            answer = found(*args, **more)
            self._after(name)
            return answer

        return call


class Killed(BaseException):
    """SIGKILL, at a call of a port."""


class Faults(msgspec.Struct, frozen=True, kw_only=True):
    """
    What goes wrong in a world. Shares are of all calls, 0 to 1.

    `launch_lost`: of launches, accepted by the cloud, the answer never arrives. `hidden_s`: for how long a new instance
    is not found (eventual consistency). `cloud_fails`, `store_fails`: calls that fail, half of them after their effect.
    `store_slow_s` is how long a call of the store takes. `runner_killed`: of the runner's calls to its ports, it dies
    there, half of the times after the effect; another one begins `runner_back_s` later.
    """

    launch_lost: float = 0.0
    hidden_s: Range = (0.0, 0.0)
    cloud_fails: float = 0.0
    store_fails: float = 0.0
    store_slow_s: float = 0.0
    runner_killed: float = 0.0
    runner_back_s: Range = (5.0, 60.0)


NO_FAULTS = Faults()


class BadLines:
    """
    The ports of one world's programs, with its faults. What befalls a call follows from the seed, the call and its
    moment, so the threads in which a ledger is read make no difference.
    """

    def __init__(self, faults: Faults, rng: Rng, clock: ManualClock) -> None:
        self._faults = faults
        self._rng = rng
        self._clock = clock

    def of_runner(self, store: Store, cloud: CloudDriver) -> tuple[Any, Any]:
        """The lines of a runner to its store and its cloud."""
        dies = self._faults.runner_killed > 0
        far_store = _Line(self._store_call, store) if dies or self._store_is_bad else store
        far_cloud = _Line(self._cloud_call, cloud) if dies or self._cloud_is_bad else cloud
        if not dies:
            return far_store, far_cloud
        return _Line(self._mortal_call, far_store), _Line(self._mortal_call, far_cloud)

    def of_agent(self, store: Store) -> Any:
        return _Line(self._store_call, store) if self._store_is_bad else store

    @property
    def _store_is_bad(self) -> bool:
        return self._faults.store_fails > 0 or self._faults.store_slow_s > 0

    @property
    def _cloud_is_bad(self) -> bool:
        return self._faults.cloud_fails > 0 or self._faults.launch_lost > 0

    def _store_call(self, call: Call, name: str, of: object) -> Any:
        self._clock.sleep(self._faults.store_slow_s)
        return self._failing(call, StoreUnavailable("connection reset"), self._faults.store_fails, name, of)

    def _cloud_call(self, call: Call, name: str, of: object) -> Any:
        answer = self._failing(call, CloudUnavailable("HTTP 503"), self._faults.cloud_fails, name, of)
        if name == "launch" and self._strikes(self._faults.launch_lost, "lost", name, of):
            raise CloudUnavailable("the answer to the launch was lost")
        return answer

    def _mortal_call(self, call: Call, name: str, of: object) -> Any:
        return self._failing(call, Killed(), self._faults.runner_killed, name, of)

    def _failing(self, call: Call, error: BaseException, share: float, name: str, of: object) -> Any:
        """Half of what fails does so before its effect, half behind it."""
        kind = type(error).__name__
        if self._strikes(share / 2, kind, "before", name, of):
            raise error
        answer = call()
        if self._strikes(share / 2, kind, "behind", name, of):
            raise error
        return answer

    def _strikes(self, share: float, *what: object) -> bool:
        return self._rng.happens(share, *what, f"{self._clock.monotonic():.6f}")


Call = Callable[[], Any]


class _Line:
    """Any port, each call of which goes through `carry(call, its name, its first argument where that is a text)`."""

    def __init__(self, carry: Callable[[Call, str, object], Any], inner: Any) -> None:
        self._carry, self._inner = carry, inner

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if not callable(found):
            return found

        def call(*args: Any, **more: Any) -> Any:
            of = args[0] if args and isinstance(args[0], str) else ""
            return self._carry(lambda: found(*args, **more), name, of)

        return call
