"""
Worlds without processes: an object store in memory, one whose answers go astray, and a cloud that is a dictionary.

`FakeCloud` passes the contract suite of the drivers (see test_runner.py), `MemoryStore` that of the stores.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from msgspec.structs import replace

from spotrun.clock import Clock
from spotrun.errors import (
    CloudError,
    CloudUnavailable,
    InsufficientCapacity,
    LaunchTokenSpent,
    ObjectMissing,
    StoreError,
    StoreUnavailable,
)
from spotrun.instance import EndedBy, Instance, InstanceState, LaunchRequest, PriceSegment
from spotrun.offering import CapacityType, Offering, Pool
from spotrun.store import Store, StoredObject

SPOT, ON_DEMAND = CapacityType.SPOT, CapacityType.ON_DEMAND


class MemoryStore:
    """A Store that is a dictionary. Its time is its clock's, else the system's."""

    uri = "memory"

    def __init__(self, clock: Clock | None = None) -> None:
        self.objects: dict[str, bytes] = {}
        self._written_at: dict[str, datetime] = {}
        self._now: Callable[[], datetime] = clock.now if clock is not None else lambda: datetime.now(UTC)
        self._lock = threading.Lock()

    def put_if_absent(self, key: str, data: bytes) -> bool:
        _check(key)
        with self._lock:
            if key in self.objects:
                return False
            self._write(key, data)
            return True

    def put(self, key: str, data: bytes | memoryview, sha256: bytes | None = None) -> bool:
        self.put_hint(key, data)
        return False

    def put_hint(self, key: str, data: bytes | memoryview) -> None:
        _check(key)
        with self._lock:
            self._write(key, data)

    def _write(self, key: str, data: bytes | memoryview) -> None:
        self.objects[key] = bytes(data)
        self._written_at[key] = self._now()

    def get(self, key: str, start: int = 0, size: int | None = None) -> bytes:
        _check(key)
        if key not in self.objects:
            raise ObjectMissing(f"there is no {key}")
        return self.objects[key][start : None if size is None else start + size]

    def list(self, prefix: str, after: str = "") -> list[StoredObject]:
        chosen = sorted(key for key in list(self.objects) if key.startswith(prefix) and key > after)
        return [self._stored(key) for key in chosen]

    def _stored(self, key: str) -> StoredObject:
        at = self._written_at.get(key) or self._now()
        return StoredObject(key=key, size_bytes=len(self.objects[key]), modified_at=at)

    def folders(self) -> tuple[str, ...]:
        return tuple(sorted({key.split("/")[0] for key in list(self.objects) if "/" in key}))

    def delete(self, key: str) -> None:
        _check(key)
        self.objects.pop(key, None)


def _check(key: str) -> None:
    parts = key.split("/")
    plain = all(part and part.isascii() and all(c.isalnum() or c in "._-" for c in part) for part in parts)
    if not plain or any(part.startswith(".") for part in parts):
        raise StoreError(f"{key!r} is not a key")


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
        self.put, self.put_hint, self.get = store.put, store.put_hint, store.get
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


def offer(zone: str, capacity_type: CapacityType = SPOT, price: str = "1.00", instance_type: str = "gpu") -> Offering:
    return Offering(
        cloud="local",
        region="local-1",
        zone=zone,
        instance_type=instance_type,
        capacity_type=capacity_type,
        price_usd_per_hour=Decimal(price),
        cpus=4,
        memory_gib=16,
        simulated=True,
    )


MARKET = (
    offer("local-1a", SPOT, "1.00"),
    offer("local-1b", SPOT, "1.10"),
    offer("local-1a", ON_DEMAND, "3.00"),
    offer("local-1b", ON_DEMAND, "3.00"),
)


class FakeCloud:
    """
    A CloudDriver over one dictionary of instances, and the hand of the market.

    Instances boot in `boot_s`, are billed from the end of their boot, and end at their time-to-live. Any number of
    runners may share one object: a driver holds no run state. `empty` are pools without capacity, `down` says that no
    call is answered.
    """

    name = "local"

    def __init__(self, clock: Clock, market: Iterable[Offering] = MARKET, boot_s: float = 30.0) -> None:
        self.market = list(market)
        self.empty: set[Pool] = set()
        self.down = False
        self.launches: list[LaunchRequest] = []
        self.terminations: list[str] = []
        self._clock = clock
        self._boot = timedelta(seconds=boot_s)
        self._instances: dict[str, Instance] = {}
        self._requests: dict[str, LaunchRequest] = {}
        self._lock = threading.Lock()

    # -- the five verbs

    def offerings(self) -> list[Offering]:
        self._answer()
        return list(self.market)

    def launch(self, request: LaunchRequest) -> Instance:
        self._answer()
        with self._lock:
            self.launches.append(request)
            known = self._requests.get(request.token)
            if known is not None:
                return self._again(known, request)
            if request.offering.pool not in {offering.pool for offering in self.market}:
                raise CloudError(f"nobody rents out {request.offering}")
            if request.offering.pool in self.empty:
                raise InsufficientCapacity(f"no capacity for {request.offering}")
            return self._start(request)

    def _again(self, known: LaunchRequest, request: LaunchRequest) -> Instance:
        if known.offering.pool != request.offering.pool:
            raise CloudError(f"token {request.token} was used for another request")
        instance = self._now(self._by_token(request.token))
        if not instance.alive:
            raise LaunchTokenSpent(f"the instance of {request.token} is gone")
        return instance

    def _start(self, request: LaunchRequest) -> Instance:
        instance = Instance(
            instance_id=f"i-{len(self._instances):05d}",
            token=request.token,
            run_uid=request.run_uid,
            launch=request.launch,
            offering=request.offering,
            state=InstanceState.PENDING,
            launched_at=self._clock.now(),
        )
        self._requests[request.token] = request
        self._instances[instance.instance_id] = instance
        return instance

    def describe(self, instance_id: str) -> Instance | None:
        self._answer()
        with self._lock:
            found = self._instances.get(instance_id)
            return None if found is None else self._now(found)

    def list(self, run_uid: str | None = None) -> list[Instance]:
        self._answer()
        with self._lock:
            return [self._now(each) for each in list(self._instances.values()) if run_uid in (None, each.run_uid)]

    def terminate(self, instance_id: str) -> None:
        self._answer()
        self.terminations.append(instance_id)
        self.end(instance_id, EndedBy.USER)

    def _answer(self) -> None:
        if self.down:
            raise CloudUnavailable("the cloud does not answer")

    # -- how time passes in it

    def _by_token(self, token: str) -> Instance:
        return next(each for each in self._instances.values() if each.token == token)

    def _now(self, instance: Instance) -> Instance:
        """The instance as it is by now; what time did to it is kept."""
        booted_at = instance.launched_at + self._boot
        dies_at = instance.launched_at + self._requests[instance.token].time_to_live
        if instance.state is InstanceState.PENDING and self._clock.now() >= booted_at:
            price = PriceSegment(since=booted_at, usd_per_hour=instance.offering.price_usd_per_hour)
            instance = replace(instance, state=InstanceState.RUNNING, billed_from=booted_at, prices=(price,))
        if instance.alive and self._clock.now() >= dies_at:
            instance = _ended(instance, dies_at, EndedBy.TIME_TO_LIVE)
        self._instances[instance.instance_id] = instance
        return instance

    # -- the hand of the market

    @property
    def alive(self) -> list[Instance]:
        return [each for each in self.all if each.alive]

    @property
    def all(self) -> list[Instance]:
        with self._lock:
            return [self._now(each) for each in list(self._instances.values())]

    def end(self, instance_id: str, by: EndedBy) -> None:
        with self._lock:
            found = self._instances.get(instance_id)
            if found is not None and self._now(found).alive:
                self._instances[instance_id] = _ended(self._instances[instance_id], self._clock.now(), by)

    def notice(self, instance_id: str, after_s: float) -> None:
        with self._lock:
            deadline = self._clock.now() + timedelta(seconds=after_s)
            self._instances[instance_id] = replace(self._instances[instance_id], notice_deadline=deadline)

    def take_what_was_announced(self) -> None:
        for instance in self.alive:
            if instance.notice_deadline is not None and self._clock.now() >= instance.notice_deadline:
                self.end(instance.instance_id, EndedBy.CLOUD)

    def reprice(self, pool: Pool, usd_per_hour: Decimal) -> None:
        """From now on a pool has another price, for what runs in it too."""
        self.market = [
            replace(found, price_usd_per_hour=usd_per_hour) if found.pool == pool else found for found in self.market
        ]
        segment = PriceSegment(since=self._clock.now(), usd_per_hour=usd_per_hour)
        for found in self.alive:
            if found.offering.pool == pool and found.billed_from is not None:
                with self._lock:
                    self._instances[found.instance_id] = replace(found, prices=(*found.prices, segment))

    def no_spot(self) -> None:
        self.empty |= {offering.pool for offering in self.market if offering.capacity_type is SPOT}


def _ended(instance: Instance, at: datetime, by: EndedBy) -> Instance:
    return replace(instance, state=InstanceState.TERMINATED, ended_at=at, ended_by=by)
