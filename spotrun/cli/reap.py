"""`spotrun reap`"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spotrun.cli.options import StoreOption, YesOption

if TYPE_CHECKING:
    from spotrun.instance import Instance


def reap(store: StoreOption = None, yes: YesOption = False) -> None:
    """Find instances that no run wants any more, and end them."""
    from spotrun.address import DEFAULT_STORE
    from spotrun.cli import attend
    from spotrun.cli.wiring import any_cloud

    cloud = any_cloud()
    unwanted = [
        instance for instance in cloud.list() if instance.alive and not _wanted(instance, store or DEFAULT_STORE)
    ]
    for instance in unwanted:
        print(f"{instance.instance_id}  {instance.offering}  of run {instance.run_uid}, launch {instance.launch}")
    if not unwanted:
        print("no instance is unwanted")
        return
    attend.confirm(yes, f"End {len(unwanted)}?")
    for instance in unwanted:
        cloud.terminate(instance.instance_id)
    print(f"ended {len(unwanted)}")


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
