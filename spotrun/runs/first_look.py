"""Reads offerings and prices for a job before it runs. Refuses a job without a suitable offering. Writes nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import NamedTuple, TypeVar

from msgspec.structs import replace

from spotrun.clouds.cloud import Cloud
from spotrun.clouds.registry import cloud_of
from spotrun.errors import CloudError, SpecInvalid, StoreError
from spotrun.folder.bench_record import benched_steps
from spotrun.folder.market_record import MarketRecord
from spotrun.market.quotes import Quotes
from spotrun.market.wishes import may_be_asked, not_named, suitable, too_dear, unmet, wishes_of
from spotrun.market.world import World
from spotrun.offering import Offering
from spotrun.policy import Append, decide
from spotrun.policy.cross_region import reservable
from spotrun.policy.facts import Facts
from spotrun.policy.least_budget import least_budget_usd
from spotrun.run.events import LaunchIntended, RunStopped
from spotrun.run.state import RunState
from spotrun.runner.creation import newborn, region_of
from spotrun.spec.model import RunSpec
from spotrun.store.opening import open_store
from spotrun.store.port import Store
from spotrun.units import plain_usd

Answer = TypeVar("Answer")


class Market(NamedTuple):
    """
    The market for a job whose run does not exist yet. `unborn` is the state that the run would have just after its
    creation, and `world` contains the suitable offerings.
    """

    spec: RunSpec
    unborn: RunState
    world: World

    @property
    def offerings(self) -> list[Offering]:
        """
        The offerings that the run is allowed to request now. Never empty.

        Raises:
            SpecInvalid, CloudError: there is no such offering. The error names the key of the job that rules out all
            offerings.
        """
        found = [each for each in self.world.offerings if may_be_asked(each, self.spec.resources)]
        if not found:
            raise self._no_choice()
        return found

    def require_any(self) -> None:
        """If the run is not allowed to request any offering now, raise the error that `offerings` raises."""
        _ = self.offerings

    @property
    def facts(self) -> Facts:
        return Facts.at_birth(self.unborn, self.spec, self.world)

    @property
    def least_usd(self) -> Decimal | None:
        """The smallest budget with which the run could begin; None if no budget is sufficient."""
        return least_budget_usd(self.unborn, self.spec, self.world)

    def first_choice(self) -> Offering:
        """
        Return the offering that the run would request first.

        Raises:
            SpecInvalid, CloudError: the run would not request any offering; the error names the job's key that causes
                this.
        """
        for action in decide(self.unborn, self.spec, self.world, self.unborn.created_at):
            if isinstance(action, Append) and isinstance(action.event, LaunchIntended):
                return action.event.offering
            if isinstance(action, Append) and isinstance(action.event, RunStopped):
                raise self._too_little(action.event.reason)
        self._refuse_a_far_bucket()
        raise self._no_choice()

    def _no_choice(self) -> CloudError | SpecInvalid:
        """
        Return the error for a run that is not allowed to request any of the offerings. The error gives the reason, and
        suggests what the job could request instead.

        The error is SpecInvalid if the job has to change: for example, if all offerings are too expensive.
        """
        if self.world.offerings:
            found = too_dear(self.world.offerings, self.spec.resources)
            return SpecInvalid(found.message, hint=found.suggestion, key=found.at)
        hint = f"see `spotrun offers --cloud {self.spec.resources.cloud}`"
        reason = "no offering suits resources: the cloud offers nothing"
        return not_offered(self.spec) or CloudError(reason, hint=hint, key=("resources",))

    def _too_little(self, why: str) -> SpecInvalid:
        least, nodes = self.least_usd, self.spec.num_nodes
        first = "the first instance needs" if nodes == 1 else f"the {nodes} instances need"
        needed = "" if least is None else f": {first} ${plain_usd(least)}"
        reason = f"nothing could be launched: {why}"
        return SpecInvalid(reason, hint=f"give a larger budget{needed}", key=("budget", "max_usd"))

    def _refuse_a_far_bucket(self) -> None:
        """
        Refuse a budget if all offerings are in regions other than the bucket's. The cost of the traffic between regions
        is not known before the first checkpoint, so the budget could not be enforced.

        Raises:
            SpecInvalid: there is a budget, and no offering is in the bucket's region.
        """
        facts, offerings = self.facts, self.world.offerings
        if offerings and not any(reservable(facts, found) for found in offerings):
            raise SpecInvalid(
                f"a budget cannot be enforced: the bucket is in {self.unborn.created.storage.region}, every offering "
                "is elsewhere, and the transfer cost of checkpoints is not known before the first checkpoint",
                hint=f"add the bucket's region to {self.spec.resources.cloud}.regions, use a bucket in one of those "
                "regions, or leave out budget.max_usd",
                key=("budget", "max_usd"),
            )


def look_at_market(
    spec: RunSpec, cloud: Cloud, runs: Store | None, part_of: str = "", world: World | None = None
) -> Market:
    """
    Return the current market of `cloud` for a run of `spec`. `part_of` is the value for `RunCreated.part_of`. If the
    market was just read for another job with the same resources, pass the result as `world`, so that the cloud is not
    queried again.

    The result includes what earlier runs recorded in the store `runs`: the speeds of instance types, and the market. If
    `runs` is None or cannot be read, these records are left out without an error, because the launch itself reports an
    unreadable store.

    Raises:
        SpecInvalid: the job names an instance type that the cloud does not have.
        CloudError: the cloud does not answer.
    """
    clock = cloud.clock(spec)
    steps = _ask(runs, lambda store: benched_steps(store, spec, clock.scale)) or {}
    unborn = newborn(spec, cloud, clock, _ask(runs, region_of) or "", steps)
    if part_of:
        unborn = replace(unborn, created=replace(unborn.created, part_of=part_of))
    if world is not None:
        return Market(spec, unborn, world)
    driver = cloud.driver(spec, clock)
    offered = driver.offerings(must_see=())  # on the local cloud, the simulated market begins with this job
    if offered and not driver.remarks:
        _require_types(spec, cloud, offered)
    offerings, created = suitable(offered, spec), unborn.created
    seen = _ask(runs, lambda store: MarketRecord(store).read(created, offerings, created.clock_epoch))
    return Market(spec, unborn, World(offerings=tuple(offerings), instances=(), observations=seen or ()))


def readable_store(folder: str) -> Store | None:
    """
    Return the store of runs; None if it cannot be opened. That is not an error here: only a launch needs the store.
    """
    with contextlib.suppress(StoreError):
        return open_store(folder)
    return None


def _ask(store: Store | None, question: Callable[[Store], Answer]) -> Answer | None:
    """Return the store's answer to `question`; None if the store cannot be read."""
    with contextlib.suppress(StoreError):
        return None if store is None else question(store)
    return None


def quotes_of(spec: RunSpec, offerings: Sequence[Offering]) -> Quotes:
    """
    Return the current and recent prices of the instance types in `offerings`, on the cloud of `spec`.

    Raises:
        CloudError: the cloud does not answer.
    """
    return cloud_of(spec).quotes(spec, sorted({found.instance_type for found in offerings}))


def not_offered(spec: RunSpec) -> SpecInvalid | None:
    """Return the error for a job whose resources its cloud never offers; None for any other job."""
    cloud = cloud_of(spec)
    offered = cloud.driver(spec, cloud.clock(spec)).offerings(must_see=()) or _of_any_type(spec, cloud)
    found = not_named(offered, spec.resources, cloud.types_listed(spec)) or unmet(offered, wishes_of(spec.resources))
    if found is None:
        return None
    advice = found.suggestion or ""
    if cloud.simulated and found.at[-1:] == ("accelerators",) and advice.startswith("there is"):
        advice += ", in the simulated market of the local cloud; write cloud: aws or cloud: gcp to rent other kinds"
    return SpecInvalid(f"no offering suits resources: {found.message}", hint=advice, key=found.at)


def _require_types(spec: RunSpec, cloud: Cloud, offered: Sequence[Offering]) -> None:
    """
    Check that the cloud has the instance types and kinds that the job lists. Those in `offered` exist; ask the cloud
    only about the others.

    Raises:
        SpecInvalid: the cloud does not have one of them.
    """
    types = cloud.types_listed(spec)
    if not_named(offered, spec.resources, types) is None:
        return
    if (found := not_named(_of_any_type(spec, cloud), spec.resources, types)) is not None:
        raise SpecInvalid(found.message, hint=found.suggestion, key=found.at)


def _of_any_type(spec: RunSpec, cloud: Cloud) -> Sequence[Offering]:
    """
    Return all offerings in the zones where the job is allowed to run, including instance types that the job does not
    name.
    """
    return cloud.driver(cloud.of_any_type(spec), cloud.clock(spec)).offerings(must_see=())
