"""`spotrun reap`"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Annotated

import typer

from spotrun.cli.options import StoreOption, YesOption
from spotrun.errors import CloudError, CloudUnavailable, RunNotFound, SpecInvalid, StoreError, StoreUnavailable
from spotrun.instance import InstanceState
from spotrun.units import count_of, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from spotrun.clouds.driver import CloudDriver
    from spotrun.clouds.guards import Guards
    from spotrun.clouds.identities import Identities
    from spotrun.clouds.orphaned_resources import Leftover, Leftovers
    from spotrun.instance import Instance
    from spotrun.runs.open_run import OpenRun

    Runs = Callable[[], "StoredRuns"]
    """Returns the runs of the store. The store is read at the first call; later calls return the same runs."""


class StoredRuns:
    """
    The runs of a store, or, if `store` is None, those of the default store and all that are known on this machine.

    If a folder of the store cannot be read, the uid of its run is not certain. So `unreadable` contains all words by
    which a user may name such a run, one of which should be its uid. If an instance's tag names one of these words as
    its run's uid, its run counts as a run of this store.
    """

    def __init__(self, store: str | None) -> None:
        from spotrun.address import DEFAULT_STORE
        from spotrun.runs.open_run import look_in

        runs, unreadable = look_in(store or DEFAULT_STORE)
        self.place = store or f"{DEFAULT_STORE}, nor known on this machine"
        self.unreadable = frozenset(word for each in unreadable for word in (*each.words, each.name.rpartition("-")[2]))
        self._elsewhere = store is None
        self._runs: dict[str, OpenRun | None] = {run.created.uid: run for run in runs}

    def get(self, uid: str) -> OpenRun | None:
        """Return the run with this uid; None if there is none, or if it cannot be read."""
        from spotrun.runs.open_run import known_elsewhere

        if uid not in self._runs:
            found = known_elsewhere(uid) if self._elsewhere and uid not in self.unreadable else ()
            self._runs[uid] = next((run for run in found if run.created.uid == uid), None)
        return self._runs[uid]

    def has(self, uid: str) -> bool:
        return self.get(uid) is not None or uid in self.unreadable


def reap(
    store: StoreOption = None,
    yes: YesOption = False,
    cloud: Annotated[str, typer.Option("--cloud", metavar="CLOUD", help="Cloud to search.")] = "local",
    region: Annotated[
        list[str] | None,
        typer.Option(
            "--region",
            metavar="REGION",
            help="Region to search on AWS. Can be repeated. On Google Cloud, all regions are searched.",
            show_default="us-east-1",
        ),
    ] = None,
    lost: Annotated[
        str | None,
        typer.Option(
            "--run",
            metavar="UID",
            help="End this run's instances, even if the run is not in the store or the store cannot be read.",
        ),
    ] = None,
) -> None:
    """
    Find and end instances that no run needs any more.

    Without --store, the runs in ~/.spotrun/runs count, and all that are known on this machine. If an instance's run is
    none of them, the instance is only listed, because the run may be in another store. If the run is in the store, but
    was not launched on this machine, the instance ends only if the run's ledger names it. If the run's folder is lost
    or damaged, end its instances with --run. Instances of a run that has no runner are listed too.

    Also removes leftovers of ended runs (roles on AWS, service accounts and disks on Google Cloud) and of interrupted
    `spotrun doctor` calls. If a region does not answer, the other regions are still searched.
    """
    from spotrun.clouds.registry import cloud_named

    runs = cache(lambda: StoredRuns(store))
    cloud_named(cloud).require_regions(region or ())
    account = cloud_named(cloud).account(region or ())
    found, unseen = _listed(account.driver)
    if lost is not None:
        left = _end_lost(found, account.driver, account.guards, runs(), lost, yes)
    else:
        left = _end_instances(found, account.driver, account.guards, runs, yes)
        _name_others(found, runs)
        _remove_leftovers(account.leftovers, runs, yes)
        _remove_identities(account.identities, runs, yes)
    if (failure := left or unseen) is not None:
        raise failure


# -- instances -------------------------------------------------------------------------------------------------------


def _listed(driver: CloudDriver) -> tuple[list[Instance], CloudError | None]:
    """Return all listed instances, and the error of the first region that did not answer; None if all did."""
    unseen = None
    try:
        found = driver.instances()
    except CloudError as error:
        found, unseen = driver.instances(must_see=()), error
    for remark in driver.remarks:
        print(remark)
    return found, unseen


def _end_instances(
    found: Iterable[Instance], driver: CloudDriver, guards: Guards, runs: Runs, yes: bool
) -> CloudError | None:
    unwanted = [each for each in found if _is_unneeded(each, runs()) and _is_certain(each, runs())]
    if not unwanted:
        print("there is no instance to end")
        return None
    return _end(unwanted, driver, guards, yes)


def _end_lost(
    found: Iterable[Instance], driver: CloudDriver, guards: Guards, known: StoredRuns, run_uid: str, yes: bool
) -> CloudError | None:
    """
    End the instances of a run that is not in the store or cannot be read.

    Raises:
        SpecInvalid: the run is in the store and can be read, so `spotrun down` can end it.
        RunNotFound: the cloud lists no instance of the run, or only ended ones.
    """
    if known.get(run_uid) is not None:
        raise SpecInvalid(
            f"--run is only for lost runs, but the run {run_uid} is in the store",
            hint=f"end it with `spotrun down {run_uid}`",
        )
    living = [each for each in found if each.alive and each.run_uid == run_uid]
    if not living:
        raise RunNotFound(
            f"the cloud lists no running instance of run {run_uid!r}",
            hint="`spotrun reap` shows all listed instances",
        )
    return _end(living, driver, guards, yes)


def _end(instances: list[Instance], driver: CloudDriver, guards: Guards, yes: bool) -> CloudError | None:
    """Ask the cloud to end the instances, and look whether they end. Return an error that names those that do not."""
    from spotrun.runs.asking import confirm
    from spotrun.runs.termination import still_there

    for instance in instances:
        print(_named(instance))
    confirm(yes, f"End {count_of(len(instances), 'instance')}?", default=True, declined="nothing was ended")
    accepted = [each for each in instances if _is_accepted(driver, each)]
    lasting = still_there(driver, {each.instance_id: each.offering.region for each in accepted})
    ending = [each for each in accepted if each.instance_id not in lasting]
    for instance in ending:
        _disarm(guards, instance)
    left = [each.instance_id for each in instances if each not in ending]
    print(f"ended {len(ending)}")
    if not left:
        return None
    asked, verb = count_of(len(instances), "instance"), "is" if len(left) == 1 else "are"
    message = f"asked to end {asked}; {len(left)} {verb} still there: {', '.join(left)}"
    return CloudUnavailable(message, hint="repeat the command")


def _name_others(found: Iterable[Instance], runs: Runs) -> None:
    """
    Print four lists of instances that have not ended: those of runs without a runner, those of damaged runs in this
    store, those whose run in this store is perhaps another one, and those of runs that are not in it. The folder of
    such a run may be in another store, or deleted.
    """
    others = [each for each in found if each.alive]
    unneeded = [each for each in others if _is_unneeded(each, runs())]
    _name_unattended({each.run_uid for each in others if each not in unneeded}, runs())
    unread = [each for each in others if runs().get(each.run_uid) is None and runs().has(each.run_uid)]
    if unread:
        print("instances of runs that cannot be read, and perhaps have not ended:")
        _name(unread, "`spotrun status` shows what is wrong; `spotrun reap --run UID` ends a run's instances")
    doubtful = [each for each in unneeded if not _is_certain(each, runs())]
    if doubtful:
        print("instances that no ledger names, perhaps of runs in another store:")
        _name(doubtful, "if a run of this uid is yours, `spotrun down UID` ends its instances")
    strangers = [each for each in others if not runs().has(each.run_uid)]
    if strangers:
        print(f"instances of runs that are not in {runs().place}:")
        _name(
            strangers, "use --store to name their store; if it is lost, `spotrun reap --run UID` ends a run's instances"
        )


def _name_unattended(uids: Iterable[str], runs: StoredRuns) -> None:
    """Print a line for each run that still needs its instances, and has no runner that would end them."""
    from spotrun.report.unattended import left_alone
    from spotrun.runs.open_run import attended

    for uid in sorted(uids):
        run = runs.get(uid)
        if run is None or attended(run):
            continue
        try:
            print(left_alone(run.typed, run.ledger.refresh()))
        except StoreError as error:
            print(f"{run.typed} has no runner, and may have instances: {error.one_line}")


def _name(instances: Iterable[Instance], advice: str) -> None:
    for instance in instances:
        print(f"  {_named(instance)}")
    print(f"  {advice}")


def _named(instance: Instance) -> str:
    """Return a description of an instance. Its tags are escaped, because any user of the account may have set them."""
    said = f"{instance.instance_id}  {instance.offering}  of run {instance.run_uid}, launch {instance.launch}"
    return shown(said, len(said))


def _is_accepted(driver: CloudDriver, instance: Instance) -> bool:
    """Ask the cloud to end an instance. If it refuses, print the reason and return False."""
    try:
        driver.terminate(instance.instance_id)
    except CloudError as error:
        print(f"{instance.instance_id} could not be ended: {error.one_line}")
        return False
    return True


def _disarm(guards: Guards, instance: Instance) -> None:
    from spotrun.clouds.guards import guard_token

    try:
        guards.disarm(guard_token(instance.token, instance.member), instance.offering.region)
    except CloudError as error:
        print(f"the guard of {instance.instance_id} stays until its time-to-live ends: {error.message}")


def _is_unneeded(instance: Instance, runs: StoredRuns) -> bool:
    return instance.alive and not _wanted(instance, runs.get(instance.run_uid))


def _is_certain(instance: Instance, runs: StoredRuns) -> bool:
    """
    Return True if the instance certainly belongs to the run of this store that has its uid: the run is known on this
    machine, or its ledger names the instance, and no other run or folder with this uid is known here. Any writer of the
    store can put a run there whose uid is that of a run in another store.
    """
    from spotrun.runs.known import is_known

    run = runs.get(instance.run_uid)
    assert run is not None
    if run.known.is_of_another() or run.known.original is not None:
        return False
    named = (member.recorded for member in run.ledger.state.members())
    return is_known(run) or any(each is not None and each.instance_id == instance.instance_id for each in named)


def _wanted(instance: Instance, run: OpenRun | None) -> bool:
    """
    Return True if the run still needs the instance. If the run or its ledger cannot be read, the instance counts as
    needed, because the run may still be training. An instance that has powered itself off is never needed: no run
    starts it again.
    """
    from spotrun.run.gang import MemberName

    if run is None:
        return True
    if instance.state is InstanceState.STOPPED:
        return False
    try:
        state = run.ledger.refresh()
    except StoreUnavailable:
        raise
    except StoreError:
        return True
    name = MemberName(instance.launch, instance.member)
    if state.terminal is not None or not state.has_asked_for(name):
        return False
    member = state.member(name)
    return state.launches[name.launch].closed is None and member.condemned is None and member.released is None


# -- disks that instances left behind ----------------------------------------------------------------------------------


def _remove_leftovers(leftovers: Leftovers, runs: Runs, yes: bool) -> None:
    """Print all leftovers of runs, and remove those of runs that have ended."""
    from spotrun.runs.asking import confirm

    found = leftovers.found()
    unused = [each for each in found if _is_of_the_past(runs().get(each.run_uid), each)]
    for each in found:
        known = runs().get(each.run_uid)
        whose = f"of {known.id}" if known else f"of run {each.run_uid}, which is not in the store: delete it by hand"
        print(f"{each.what}, {whose}" + (", which has ended" if each in unused else ""))
    if not unused:
        return
    confirm(yes, f"Delete {count_of(len(unused), 'disk')}?", default=True, declined="nothing was deleted")
    for each in unused:
        leftovers.remove(each)
    print(f"deleted {len(unused)}")


def _is_of_the_past(run: OpenRun | None, leftover: Leftover) -> bool:
    return run is not None and _is_over(run, leftover.what)


# -- identities of runs ----------------------------------------------------------------------------------------------


def _remove_identities(identities: Identities, runs: Runs, yes: bool) -> None:
    """
    Remove the cloud identities (IAM roles or service accounts) of runs that have ended, and those that interrupted
    calls of `spotrun doctor` left behind.
    """
    from spotrun.clock import system_clock
    from spotrun.clouds.identities import is_left_trial
    from spotrun.runs.asking import confirm

    now, unused = system_clock().now(), {}
    for uid in _identified(identities):
        if is_left_trial(uid, now):
            unused[uid] = f"the {identities.noun} of the trial {uid}"
        elif (run := runs().get(uid)) is not None and _is_over(run, f"the {identities.noun}"):
            unused[uid] = f"the {identities.noun} of {run.id}"
    for what in unused.values():
        print(f"{what}, which has ended")
    if not unused:
        return
    confirm(yes, f"Remove {count_of(len(unused), identities.noun)}?", default=True, declined="nothing was removed")
    print(f"removed {sum(_is_removed(identities, uid, what) for uid, what in unused.items())}")


def _is_removed(identities: Identities, uid: str, what: str) -> bool:
    """Remove an identity. If that fails, print the reason and return False."""
    try:
        identities.remove(uid)
    except CloudError as error:
        print(f"{what} stays: {error.one_line}")
        return False
    return True


def _identified(identities: Identities) -> list[str]:
    """
    Return the uids of runs that have a cloud identity. If the identities cannot be listed, print the reason and return
    no uids.
    """
    try:
        return identities.runs()
    except CloudError as error:
        print(f"cannot look for the {identities.noun} of each run: {error.message}")
        return []


def _is_over(run: OpenRun, what: str) -> bool:
    """
    Return True if the run and all its instances, in all its regions, have ended. The caller then removes a resource of
    the run, which `what` describes in messages.

    If the run cannot be read, or is still being created, return False, because it may still need the resource.
    """
    try:
        state = run.ledger.refresh()
        return state.terminal is not None and not any(each.alive for each in run.driver.instances(run.created.uid))
    except (CloudError, StoreUnavailable) as error:
        print(f"{what} of {run.id} is kept, because it may still be in use: {error.message}")
        return False
    except (StoreError, SpecInvalid):
        return False
