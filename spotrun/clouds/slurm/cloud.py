"""The cloud `slurm`. See spotrun.clouds.cloud."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

from spotrun.clock import Clock, ScaledClock, system_clock
from spotrun.clouds.cloud import Account, Cloud, Forward, RentalFlags, Shell, refuse_regions
from spotrun.clouds.notices import NoticeSource
from spotrun.clouds.slurm.ids import job_of
from spotrun.clouds.slurm.notices import slurm_notices
from spotrun.clouds.slurm.refusals import refusals
from spotrun.doctor.finding import Finding
from spotrun.errors import CloudError, CloudNotInstalled, SpecInvalid
from spotrun.instance import Instance
from spotrun.market.quotes import Quote, Quotes
from spotrun.offering import CapacityType, Offering
from spotrun.run.billing import SLURM_RULE
from spotrun.run.events import BillingRule
from spotrun.run.gang import MEMBERS_MAX
from spotrun.secrets.reference import ENVIRONMENT, Reference
from spotrun.spec.model import RunSpec
from spotrun.store.port import Store
from spotrun.units import Unreadable

if TYPE_CHECKING:
    from spotrun.clouds.slurm.config import SlurmConfig
    from spotrun.clouds.slurm.driver import SlurmDriver


class Slurm(Cloud):
    """
    Nodes of a cluster, requested through its queue. The section `slurm` of a job names the partitions and their prices.
    """

    name = "slurm"
    here = False
    shares_folders = True
    simulated = False
    sends_bills = False
    notice = timedelta(seconds=30)
    members_max = MEMBERS_MAX
    instead_of_envs = (
        "keep it in a file in your home folder, which the nodes share: secrets do not reach instances on slurm yet"
    )

    def refusals(self, spec: RunSpec) -> Iterator[Unreadable]:
        return refusals(spec)

    def secret(self, name: str) -> Reference:
        """
        Return a reference to an environment variable of this machine. The reference is never used, because jobs with
        secrets are refused on Slurm (see `refusals`).
        """
        return Reference(ENVIRONMENT, name)

    def boot(self, spec: RunSpec) -> timedelta:
        """
        Return the usual time between the moment when a node is free and the moment when the agent runs on it. It allows
        for two delays: Slurm's controller assigns nodes only every few seconds, and Python imports modules slowly from
        a network file system.
        """
        return timedelta(seconds=30)

    def interrupts(self, spec: RunSpec) -> bool:
        return True

    def longest_life(self, spec: RunSpec, offering: Offering) -> timedelta | None:
        return next((each.max_time for each in spec.slurm.partitions if each.name == offering.zone), None)

    # -- a run ---------------------------------------------------------------------------------------------------

    def driver(self, spec: RunSpec, clock: ScaledClock) -> SlurmDriver:
        from spotrun.clouds.slurm.config import config_of

        return _driver(config_of(spec.slurm, spec.num_nodes), clock)

    def require_known(self, spec: RunSpec) -> None:
        """
        Check that Slurm's controller knows the job's partitions. Like submitting the job, this needs a connection to
        the controller.
        """
        from spotrun.clouds.slurm.commands import Programs, require_submitting
        from spotrun.clouds.slurm.config import config_of
        from spotrun.clouds.slurm.partitions import misfits, read_cluster

        try:
            cluster = read_cluster(Programs())
            require_submitting(Programs())
        except CloudNotInstalled as error:
            raise SpecInvalid(error.message, hint=error.hint, key=("resources", "cloud")) from error
        for problem in misfits(config_of(spec.slurm, spec.num_nodes), cluster):
            raise SpecInvalid(problem.message, hint=problem.suggestion, key=problem.at)

    def furnish(self, store: Store) -> None:
        """
        Do nothing, because the nodes run this machine's installation of spotrun and its packages, from a shared folder.
        """

    def billing(self, spec: RunSpec) -> BillingRule:
        return SLURM_RULE

    # -- an instance ---------------------------------------------------------------------------------------------

    def notice_sources(self, environment: Mapping[str, str], clock: Clock) -> Sequence[NoticeSource]:
        return slurm_notices(environment, clock)

    def shell(self, spec: RunSpec, instance: Instance) -> Shell:
        """
        Return a shell on the instance's node. It runs as a step of the Slurm job, next to the training, and ends when
        the job ends.
        """
        from spotrun.clouds.slurm.submission import files_of

        job = job_of(instance.instance_id)
        seats = files_of(instance.token).seats()
        there = ("--nodes=1", f"--nodelist={seats[instance.member].node}") if seats else ()
        return Shell(
            ("srun", f"--jobid={job}", "--overlap", *there, "--pty", "bash", "-l"),
            needs={"srun": "run spotrun on a login node of the cluster"},
            advice=f"if no shell opens, see `squeue --jobs={job}`",
        )

    def forwarding(self, spec: RunSpec, instance: Instance, forwards: Sequence[Forward]) -> Shell:
        flags = " ".join(f"-L {one.here}:NODE:{one.there}" for one in forwards)
        named = f"`squeue --jobs={job_of(instance.instance_id)}` names NODE"
        raise CloudError(
            "spotrun cannot forward a port to a Slurm node",
            hint=f"run this on your own machine: ssh {flags} LOGIN-NODE; {named}",
        )

    def console(self, instance: Instance) -> str | None:
        from spotrun.clouds.slurm.submission import files_of, log_of

        paths = (files_of(instance.token).log(instance.member), log_of(instance.token))
        return next((path.read_text(errors="replace") for path in paths if path.exists()), None)

    def interrupt(self, spec: RunSpec, instance_id: str, zone: str, notice: timedelta | None) -> None:
        raise CloudError(
            f"{instance_id} is on slurm, and spotrun cannot interrupt instances there",
            hint="without a notice: scancel; with a notice: submit a job to a partition with a higher PriorityTier",
        )

    def forget(self, run_uid: str) -> None:
        from spotrun.clouds.slurm.submission import logs

        for path in logs().glob(f"{run_uid}-*"):
            path.unlink(missing_ok=True)

    # -- an account ----------------------------------------------------------------------------------------------

    def account(self, regions: Sequence[str]) -> Account:
        """
        Return the interfaces through which spotrun lists and ends this user's jobs on the cluster, for all runs
        together.
        """
        from spotrun.clouds.slurm.config import SlurmConfig

        refuse_regions(self, regions)
        return Account(_driver(SlurmConfig(), system_clock()))

    def offers(self, wish: RentalFlags) -> Quotes:
        raise SpecInvalid(
            "Slurm does not list prices of nodes; the job must give them in slurm.partitions",
            hint="`spotrun launch JOB.yaml --dry-run`, or `spotrun doctor slurm` to list the partitions",
        )

    def quotes(self, spec: RunSpec, types: Sequence[str]) -> Quotes:
        clock = self.clock(spec)
        offerings = [each for each in self.driver(spec, clock).offerings() if each.instance_type in types]
        on_demand = [each for each in offerings if each.capacity_type is CapacityType.ON_DEMAND]
        return Quotes(at=clock.now(), quotes=tuple(_quote(each, on_demand) for each in offerings))

    def findings(self, spec: RunSpec | None, wish: RentalFlags) -> Iterator[Finding]:
        from spotrun.clouds.slurm.commands import Programs
        from spotrun.clouds.slurm.config import SlurmConfig, config_of
        from spotrun.clouds.slurm.doctor import SlurmDoctor

        refuse_regions(self, wish.regions)
        config = SlurmConfig() if spec is None else config_of(spec.slurm, spec.num_nodes)
        return SlurmDoctor(config, wish.store, Programs()).findings()


CLOUD = Slurm()


def _driver(config: SlurmConfig, clock: Clock) -> SlurmDriver:
    from spotrun.clouds.slurm.driver import SlurmDriver

    return SlurmDriver(config, clock)


def _quote(offering: Offering, on_demand: Sequence[Offering]) -> Quote:
    prices = [each.price_usd_per_hour for each in on_demand if each.instance_type == offering.instance_type]
    return Quote(offering=offering, history=(), on_demand_usd_per_hour=min(prices, default=None))
