"""Implements CloudDriver for the local cloud."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path

from spotrun.clock import ScaledClock
from spotrun.clouds.local import settling
from spotrun.clouds.local.config import NOTICE, MarketConfig
from spotrun.clouds.local.launching import Launcher
from spotrun.clouds.local.market import Market
from spotrun.clouds.local.records import CloudLog, CloudPaths, Record, RecordFolder, instance_id_of
from spotrun.errors import CloudError, CloudUnavailable
from spotrun.instance import Instance, LaunchRequest, PriceSegment
from spotrun.market.quotes import Quotes
from spotrun.market.wishes import wishes_by_flags
from spotrun.offering import CapacityType, Offering

ROOT_VARIABLE = "SPOTRUN_LOCAL_CLOUD"
BOOTSTRAP = (sys.executable, "-P", "-m", "spotrun.agent.bootstrap")
"""
The init process of an instance. The flag -P keeps Python from importing modules from the working directory, which is
the instance's disk.
"""


def default_root() -> Path:
    return Path(os.environ.get(ROOT_VARIABLE) or "~/.spotrun/local").expanduser()


class LocalDriver:
    """
    Simulates instances with trees of processes on this machine. The driver's data is in the folder `root`: every
    LocalDriver with the same root sees the same instances and can terminate them. `market` and `init` apply only to the
    instances that this object launches.
    """

    name = "local"
    rations_calls = False
    remarks: tuple[str, ...] = ()

    def __init__(
        self,
        root: Path,
        clock: ScaledClock,
        market: MarketConfig | None = None,
        *,
        init: Sequence[str] = BOOTSTRAP,
    ) -> None:
        self._places = CloudPaths(root.expanduser().absolute())
        self._clock = clock
        config = market or MarketConfig()
        self._market = Market(config, clock.epoch)
        self._log = CloudLog(self._places.log)
        self._launcher = Launcher(self._places, clock, config, init, self._log)

    # -- CloudDriver -----------------------------------------------------------------------------------------

    def offerings(self, must_see: Collection[str] | None = None) -> list[Offering]:
        return self._market.offerings(self._clock.now())

    def launch(self, request: LaunchRequest) -> Instance:
        with _as_unavailable():
            if request.count is not None:
                return self._launcher.launch_members([*self._folders(request, request.count)], request)
            folder = self._folder(instance_id_of(request.token))
            known = settling.settled(folder, self._log)
            if known is None or settling.was_cut_short(known):
                return self._launcher.launch_or_join(folder, request)
            return self._launcher.launched_before(folder, known, request)

    def describe(self, instance_id: str) -> Instance | None:
        with _as_unavailable():
            folder = self._places.record_folder(instance_id)
            record = None if folder is None else settling.shown(folder, self._log)
            return None if folder is None or record is None else settling.as_seen(folder, record)

    def instances(self, run_uid: str | None = None, must_see: Collection[str] | None = None) -> list[Instance]:
        with _as_unavailable():
            known = [(folder, settling.shown(folder, self._log)) for folder in self._places.record_folders()]
            seen = [settling.as_seen(folder, record) for folder, record in known if record is not None]
            return [instance for instance in seen if run_uid is None or instance.run_uid == run_uid]

    def spot_history(self, offering: Offering, since: datetime) -> Sequence[PriceSegment]:
        return ()

    def terminate(self, instance_id: str) -> None:
        with _as_unavailable():
            folder = self._places.record_folder(instance_id)
            record = None if folder is None else settling.settled(folder, self._log)
            if folder is None or record is None or record.ended:
                return
            folder.order("terminate", {})
            if not settling.ends(folder, self._log, within_s=settling.END_WITHIN_S):
                settling.end_by_force(folder, self._log)

    def quotes(self, accelerators: Sequence[str], types: Sequence[str], regions: Sequence[str]) -> Quotes:
        """
        Return the prices of all offerings whose accelerators are in `accelerators`, whose instance type is in `types`,
        and whose region is in `regions`.
        """
        now = self._clock.now()
        wishes = [*wishes_by_flags(regions, types, accelerators)]
        wanted = [each for each in self.offerings() if all(wish.fits(each) for wish in wishes)]
        return Quotes(at=now, quotes=tuple(self._market.quote(each, now) for each in wanted))

    # -- for simulated clouds only ---------------------------------------------------------------------------

    def interrupt(self, instance_id: str, notice: timedelta | None = NOTICE) -> None:
        """
        Interrupt a spot instance as the cloud would. `notice` is in run time; None means no notice.

        Raises:
            CloudError: no such instance is running, or it is an on-demand instance, which the cloud never interrupts.
        """
        folder, record = self._alive(instance_id)
        if record.instance.offering.capacity_type is not CapacityType.SPOT:
            raise CloudError(
                f"{instance_id} is on-demand: the cloud never interrupts it",
                hint="interrupt a spot instance, or end this one with `spotrun down`",
            )
        folder.order("interrupt", {"notice_s": None if notice is None else notice.total_seconds()})

    def rebalance(self, instance_id: str) -> None:
        """
        Announce a recommendation to rebalance in the instance's metadata. Raise CloudError if the instance is not
        running.
        """
        folder, _ = self._alive(instance_id)
        folder.order("rebalance", {})

    def folder(self, instance_id: str) -> Path:
        """
        Return the folder that serves as an instance's disk (its SPOTRUN_INSTANCE_DIR). It contains status.json and
        console.log.
        """
        return self._places.disk(instance_id)

    def record(self, instance_id: str) -> Record | None:
        """
        Return an instance's whole record, with its processes and endpoint. Only tests and `spotrun doctor` need it.
        """
        folder = self._places.record_folder(instance_id)
        return None if folder is None else settling.settled(folder, self._log)

    def forget(self, run_uid: str) -> None:
        """
        Delete the records of a run's terminated instances, so that the launch tokens can be used again. The cloud's log
        is kept.

        While any member of a gang runs, the records of all its members are kept, because the first member's record
        folder also says whether the gang's launch succeeded.
        """
        with _as_unavailable():
            known = [(folder, settling.settled(folder, self._log)) for folder in self._places.record_folders()]
            living = {record.instance.token for _, record in known if record is not None and not record.ended}
            for folder, record in known:
                if record is None or record.instance.run_uid != run_uid:
                    continue
                if record.instance.token not in living:
                    self._places.remove_instance(folder)
            if not self.instances(run_uid):
                self._places.market(run_uid).unlink(missing_ok=True)
                self._places.market(run_uid).with_suffix(".lock").unlink(missing_ok=True)

    def _alive(self, instance_id: str) -> tuple[RecordFolder, Record]:
        folder = self._places.record_folder(instance_id)
        record = None if folder is None else settling.settled(folder, self._log)
        if folder is None or record is None or record.ended:
            raise CloudError(f"no instance {instance_id} is running", hint="`spotrun status` lists running instances")
        return folder, record

    def _folders(self, request: LaunchRequest, count: int) -> Iterator[RecordFolder]:
        """Return the record folders of a launch's members, in the order of their indices."""
        return (self._folder(instance_id_of(request.token, member)) for member in range(count))

    def _folder(self, instance_id: str) -> RecordFolder:
        folder = self._places.record_folder(instance_id)
        assert folder is not None
        return folder


@contextmanager
def _as_unavailable() -> Iterator[None]:
    try:
        yield
    except (OSError, subprocess.TimeoutExpired) as error:
        hint = "make sure that the local cloud's folder is writable and has space"
        raise CloudUnavailable(f"the local cloud cannot be used: {error}", hint=hint) from error
