"""The local cloud. See spotrun.clouds.cloud."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from spotrun.clock import Clock, ScaledClock, system_clock
from spotrun.clouds.aws.notices import Ec2Notices
from spotrun.clouds.cloud import Account, Cloud, Forward, RentalFlags, Shell, refuse_regions, zone_elsewhere
from spotrun.clouds.notices import NoticeSource
from spotrun.container import ENTRANCE
from spotrun.doctor.finding import Finding, findings_of, ok
from spotrun.errors import CloudError
from spotrun.instance import Instance
from spotrun.market.quotes import Quotes
from spotrun.run.billing import LOCAL_RULE
from spotrun.run.events import BillingRule
from spotrun.run.gang import MEMBERS_MAX
from spotrun.secrets.reference import ENVIRONMENT, Reference
from spotrun.spec.market_script import Action
from spotrun.spec.model import RunSpec
from spotrun.spec.strict import judged
from spotrun.store.port import Store
from spotrun.units import Unreadable, count_of, some_of

if TYPE_CHECKING:
    from spotrun.clouds.local.driver import LocalDriver


class Local(Cloud):
    """
    Processes on this machine as instances, at simulated prices. The section `local` of a job describes the market.
    """

    name = "local"
    here = True
    simulated = True
    notice = timedelta(minutes=2)
    members_max = MEMBERS_MAX
    instead_of_envs = "write secrets: [NAME], and export it where spotrun runs"

    def refusals(self, spec: RunSpec) -> Iterator[Unreadable]:
        return judged(spec, _home_is_here, zone_elsewhere, _small_pool, _steps_for_others)

    def secret(self, name: str) -> Reference:
        return Reference(ENVIRONMENT, name)

    def boot(self, spec: RunSpec) -> timedelta:
        return spec.local.boot

    def interrupts(self, spec: RunSpec) -> bool:
        return spec.local.market != "calm"

    # -- a run ---------------------------------------------------------------------------------------------------

    def driver(self, spec: RunSpec, clock: ScaledClock) -> LocalDriver:
        from spotrun.clouds.local.config import market_config
        from spotrun.clouds.local.driver import LocalDriver, default_root

        return LocalDriver(default_root(), clock, market_config(spec.local))

    def clock(self, spec: RunSpec) -> ScaledClock:
        return ScaledClock(datetime.now(UTC), spec.local.time_scale)

    def furnish(self, store: Store) -> None:
        """Do nothing, because instances run the packages that are installed on this machine."""

    def billing(self, spec: RunSpec) -> BillingRule:
        return LOCAL_RULE

    # -- an instance ---------------------------------------------------------------------------------------------

    def notice_sources(self, environment: Mapping[str, str], clock: Clock) -> Sequence[NoticeSource]:
        return [Ec2Notices.of(environment, clock)]  # a local instance's metadata service uses EC2's protocol

    def shell(self, spec: RunSpec, instance: Instance) -> Shell:
        """
        Return a shell in the instance's container, or, if the job has no container, in the instance's work folder.
        """
        folder = self._everything().folder(instance.instance_id)
        work, entrance = folder / "work", folder / ENTRANCE
        shell = str(entrance) if entrance.exists() else os.environ.get("SHELL") or "sh"
        return Shell((shell,), work if work.is_dir() else folder)

    def forwarding(self, spec: RunSpec, instance: Instance, forwards: Sequence[Forward]) -> Shell:
        there = some_of([f"127.0.0.1:{one.there}" for one in forwards])
        raise CloudError(
            f"an instance of the local cloud runs on this machine, so {there} is reachable without forwarding",
            hint="leave out -L",
        )

    def console(self, instance: Instance) -> str | None:
        path = self._everything().folder(instance.instance_id) / "console.log"
        return path.read_text(errors="replace") if path.exists() else None

    def interrupt(self, spec: RunSpec, instance_id: str, zone: str, notice: timedelta | None) -> None:
        self._everything().interrupt(instance_id, notice)

    def forget(self, run_uid: str) -> None:
        self._everything().forget(run_uid)

    # -- an account ----------------------------------------------------------------------------------------------

    def account(self, regions: Sequence[str]) -> Account:
        refuse_regions(self, regions)
        return Account(self._everything())

    def offers(self, wish: RentalFlags) -> Quotes:
        return self._everything().quotes(wish.accelerators, wish.instance_types, wish.regions)

    def quotes(self, spec: RunSpec, types: Sequence[str]) -> Quotes:
        return self.driver(spec, self.clock(spec)).quotes((), types, ())

    def findings(self, spec: RunSpec | None, wish: RentalFlags) -> Iterator[Finding]:
        return findings_of("local cloud", self._alive)

    def _alive(self) -> Iterator[Finding]:
        alive = sum(instance.alive for instance in self._everything().instances())
        yield ok(
            "local cloud",
            f"{count_of(alive, 'instance')} running; each instance's supervisor enforces its time-to-live",
        )

    def _everything(self) -> LocalDriver:
        """Return a driver for all instances of this user, whichever run they belong to."""
        from spotrun.clouds.local.driver import LocalDriver, default_root

        return LocalDriver(default_root(), system_clock())


def _home_is_here(spec: RunSpec) -> Iterator[Unreadable]:
    if spec.resources.home is not None:
        advice = "name the cloud that trains while this machine does not, like aws"
        yield Unreadable("is this machine, which resources.home names too", advice, at=("resources", "cloud"))


def _small_pool(spec: RunSpec) -> Iterator[Unreadable]:
    room = spec.local.capacity
    if room is not None and room < spec.num_nodes and spec.resources.spot_policy == "spot":
        reason = f"a spot pool has room for {count_of(room, 'instance')} (local.capacity), not {spec.num_nodes}"
        yield Unreadable(reason, "write a larger local.capacity, or spot_policy: auto", at=("num_nodes",))


def _steps_for_others(spec: RunSpec) -> Iterator[Unreadable]:
    """Yield an error for each step of the scripted market that affects more instances than the run has."""
    for index, step in enumerate(spec.local.script):
        at = ("local", "script", index)
        if (step.members or 1) > spec.num_nodes:
            yield Unreadable(f"the run has {count_of(spec.num_nodes, 'instance')}", "remove it", at=(*at, "members"))
        if step.then is Action.CUT_OFF and spec.num_nodes == 1:
            yield Unreadable(
                "the run has no other instance to cut this one off from", "remove the step", at=(*at, "then")
            )


CLOUD = Local()
