"""`spotrun reap`"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from spotrun.cli.options import StoreOption, YesOption

if TYPE_CHECKING:
    from spotrun.clouds.guards import Guards
    from spotrun.instance import Instance


def reap(
    store: StoreOption = None,
    yes: YesOption = False,
    cloud: Annotated[str, typer.Option("--cloud", help="local or aws.")] = "local",
    region: Annotated[
        list[str] | None, typer.Option("--region", help="Of aws; may be repeated. Default: us-east-1.")
    ] = None,
) -> None:
    """Find instances that no run wants any more, and end them."""
    from spotrun.address import DEFAULT_STORE
    from spotrun.cli import attend
    from spotrun.cli.wiring import cloud_named, guards_named

    driver, guards = cloud_named(cloud, region), guards_named(cloud, region)
    unwanted = [
        instance for instance in driver.list() if instance.alive and not _wanted(instance, store or DEFAULT_STORE)
    ]
    for instance in unwanted:
        print(f"{instance.instance_id}  {instance.offering}  of run {instance.run_uid}, launch {instance.launch}")
    if not unwanted:
        print("no instance is unwanted")
        return
    attend.confirm(yes, f"End {len(unwanted)}?")
    for instance in unwanted:
        driver.terminate(instance.instance_id)
        _disarm(guards, instance)
    print(f"ended {len(unwanted)}")


def _disarm(guards: Guards, instance: Instance) -> None:
    from spotrun.errors import CloudError

    try:
        guards.disarm(instance.token, instance.offering.region)
    except CloudError as error:
        print(f"the guard of {instance.instance_id} stays until its time-to-live is over: {error.message}")


def _wanted(instance: Instance, store: str) -> bool:
    """
    Whether its run still has a use for it. A run that cannot be found or read keeps its instances: unknown is not dead.
    """
    from spotrun.cli.wiring import runs_in
    from spotrun.errors import LedgerDamaged

    run = next((found for found in runs_in(store) if found.created.uid == instance.run_uid), None)
    if run is None:
        return True
    try:
        state = run.ledger.refresh()
    except LedgerDamaged:
        return True
    launch = state.launches.get(instance.launch)
    return state.terminal is None and launch is not None and launch.closed is None and launch.condemned is None
