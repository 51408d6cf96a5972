"""`spotrun night`"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from spotrun.cli.options import JsonOption, LaunchStoreOption, SpecArgument, StoreOption, YesOption, print_json
from spotrun.cli.plain_help import HELP, Verbs, add_verbs

if TYPE_CHECKING:
    from spotrun.clouds.nights import Nights

NightArgument = Annotated[str, typer.Argument(metavar="NAME", help="Name of the night. `spotrun night ls` shows it.")]


AtOption = Annotated[
    str, typer.Option("--at", metavar="TIME", help='Time at which to begin, with a time zone: "22:00 Europe/Berlin".')
]
DaysOption = Annotated[
    str, typer.Option("--days", metavar="DAYS", help="Days on which to begin, such as daily, mon-fri or mon,wed,fri.")
]
DeadlineOption = Annotated[
    str | None,
    typer.Option("--deadline", metavar="DURATION", help="Finish each night within this time, like 8h."),
]
BudgetOption = Annotated[str | None, typer.Option("--budget", metavar="USD", help="Spend at most this much per night.")]
NameOption = Annotated[
    str | None, typer.Option("--name", "-n", metavar="NAME", help="Give the night and its runs this name.")
]
CloudOption = Annotated[str | None, typer.Option("--cloud", metavar="CLOUD", help="Train on this cloud.")]
RegionOption = Annotated[str | None, typer.Option("--region", metavar="REGION", help="Rent only in this region.")]


def install(
    spec_path: SpecArgument,
    at: AtOption,
    days: DaysOption = "daily",
    deadline: DeadlineOption = None,
    budget: BudgetOption = None,
    name: NameOption = None,
    cloud: CloudOption = None,
    region: RegionOption = None,
    store: LaunchStoreOption = None,
    yes: YesOption = False,
) -> None:
    """
    Train a job every night, controlled by a function in the cloud.

    Your machine may be off. The function begins each night as `launch --nightly` would, and takes care of the run once
    a minute until the run has ended. Between nights nothing runs. To change the job, its files or its times, install
    the night again.
    """
    from spotrun import address
    from spotrun.night.installation import Installation
    from spotrun.runs.asking import confirm, say

    overrides: dict[str, object] = {
        "name": name,
        "resources.cloud": cloud,
        "resources.region": region,
        "policy.deadline": deadline,
        "budget.max_usd": budget,
        "checkpoint.uri": None if store is None else address.absolute(store),
    }
    installation = Installation(spec_path, overrides, at, days)
    installation.show()
    confirm(yes, "Install?", default=False, declined="nothing was installed")
    due = installation.install(say)
    until = "" if due is None else f"; the next night is due at {due:%Y-%m-%d %H:%M} UTC"
    print(f"installed {installation.name}{until}")


def list_nights(store: StoreOption = None, as_json: JsonOption = False) -> None:
    """
    List the installed nights: when each is due, how its last run ended, and what its function costs.
    """
    from datetime import UTC, datetime

    from msgspec import to_builtins

    from spotrun.errors import SpotrunError
    from spotrun.folder.night_record import names
    from spotrun.night.rows import NightRow, row_of, show
    from spotrun.runs.open_run import default_store

    folder, now = store or default_store(), datetime.now(UTC)
    rows, unread = list[NightRow](), list[SpotrunError]()
    for name in names(folder):
        try:
            rows.append(row_of(folder, name, now))
        except SpotrunError as error:
            unread.append(error)
    if as_json:
        print_json(to_builtins(rows))
    elif rows:
        show(rows)
    elif not unread:
        print(f"no nights in {folder}")
    if unread:
        raise unread[0]


def run(name: NightArgument, store: StoreOption = None) -> None:
    """Begin a night now, as if it were due. If the night has an unfinished run, continue that run instead."""
    from datetime import UTC, datetime

    from spotrun.report.tables import plain

    answer = _installed(name, store).begin(name, datetime.now(UTC))
    trouble = f" ({answer['trouble']})" if answer.get("trouble") else ""
    print(plain(f"{answer.get('run')}: {answer.get('state')}{trouble}"))


def remove(name: NightArgument, store: StoreOption = None, yes: YesOption = False) -> None:
    """Remove a night and its schedule. Its runs stay in the store. A run that has not ended loses its runner."""
    from spotrun.folder.night_record import NightRecord
    from spotrun.night.rows import newest_run
    from spotrun.runs.asking import confirm, say
    from spotrun.runs.open_run import default_store

    nights = _installed(name, store)
    folder = store or default_store()
    last = newest_run(NightRecord(folder, name, nights.pinned(name)))
    if last is not None and last.ledger.refresh().terminal is None:
        say(
            f"note: {last.id} continues without a runner, and its instance ends when its time-to-live is over. "
            f"`spotrun resume {last.typed}` takes care of the run, `spotrun down {last.typed}` ends it now"
        )
    confirm(yes, f"Remove the night {name}?", default=False, declined="nothing was removed")
    nights.remove(name, folder, say)
    NightRecord(folder, name).remove()
    print(f"removed {name}")


def _installed(name: str, store: str | None) -> Nights:
    from spotrun.clouds.registry import nights_of
    from spotrun.folder.night_record import NightRecord
    from spotrun.runs.open_run import default_store

    return nights_of(NightRecord(store or default_store(), name).read())


app = typer.Typer(
    context_settings=HELP,
    name="night",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    help="Train a job every night, controlled by a function in the cloud.",
)
VERBS: Verbs = {
    "install": (install, 'train.yaml --at "22:00 Europe/Berlin" --days mon-fri --deadline 8h --budget 15 --cloud aws'),
    "ls": (list_nights, "--json"),
    "run": (run, "resnet50"),
    "rm": (remove, "resnet50"),
}
"""The verbs, each with the arguments of an example for its help."""
add_verbs(app, "spotrun night", VERBS)
