"""`spotrun doctor`"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from spotrun.cli.options import StoreOption

RACERS = 16


def doctor(store: StoreOption = None) -> None:
    """Check that this machine and the store can carry a run safely."""
    from spotrun.errors import SpotrunError

    failed = 0
    for name, check in _checks(store):
        try:
            print(f"ok     {name}: {check()}")
        except SpotrunError as error:
            failed += 1
            print(f"FAILED {name}: {error}")
    if failed:
        raise SpotrunError(f"{failed} checks failed", hint="mend what is named above")


def _checks(store: str | None) -> Iterator[tuple[str, Callable[[], str]]]:
    from spotrun.cli.wiring import DEFAULT_STORE

    folder = store or DEFAULT_STORE
    yield "store", lambda: _store_races(folder)
    yield "ledgers", lambda: _ledgers(folder)
    yield "local cloud", _local_cloud
    yield "lightning", _lightning


def _store_races(folder: str) -> str:
    """Sixteen writers race for one name: exactly one may win, or the store cannot hold a ledger."""
    import secrets
    from concurrent.futures import ThreadPoolExecutor

    from spotrun.errors import StoreError
    from spotrun.store import open_store

    opened = open_store(folder)
    key = f"doctor/{secrets.token_hex(8)}"
    try:
        with ThreadPoolExecutor(RACERS) as pool:
            wins = sum(pool.map(lambda number: opened.put_if_absent(key, b"%d" % number), range(RACERS)))
    finally:
        opened.delete(key)
    if wins != 1:
        raise StoreError(f"{wins} of {RACERS} racing writers won in {folder}", hint="use another file system")
    return f"{opened.uri} creates only what is absent ({RACERS} racing writers, one winner)"


def _ledgers(folder: str) -> str:
    from spotrun.cli.wiring import runs_in

    runs = runs_in(folder)
    voids = sum(len(run.ledger.refresh().voids) for run in runs)
    return f"{len(runs)} runs, no entry missing, {voids} void"


def _local_cloud() -> str:
    from spotrun.cli.wiring import any_cloud

    alive = sum(instance.alive for instance in any_cloud().list())
    return f"{alive} instances are running; time-to-live is armed by each instance's own supervisor"


def _lightning() -> str:
    from importlib.metadata import PackageNotFoundError, entry_points, version

    from spotrun.errors import SpotrunError

    hooks = [hook for hook in entry_points(group="pytorch_lightning.callbacks_factory") if hook.name == "spotrun"]
    if not hooks:
        raise SpotrunError("Lightning would not find spotrun's callback", hint="install spotrun with pip, not by path")
    try:
        return f"pytorch-lightning {version('pytorch-lightning')} loads the callback by itself"
    except PackageNotFoundError:
        raise SpotrunError(
            "pytorch-lightning is not installed", hint="pip install 'pytorch-lightning>=2.6.6'"
        ) from None
