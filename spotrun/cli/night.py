"""`spotrun night`"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from spotrun.cli.options import JsonOption, LaunchStoreOption, SpecArgument, StoreOption, YesOption, print_json
from spotrun.cli.plain_help import HELP, Verbs, add_verbs

if TYPE_CHECKING:
    from spotrun.clouds.nights import Nights
    from spotrun.folder.night_record import Night
    from spotrun.spec.model import RunSpec

NightArgument = Annotated[str, typer.Argument(metavar="NAME", help="Its name, as `spotrun night ls` shows it.")]


AtOption = Annotated[
    str, typer.Option("--at", metavar="TIME", help='When to begin, with the time zone: "22:00 Europe/Berlin".')
]
DaysOption = Annotated[
    str, typer.Option("--days", metavar="DAYS", help="On which days: daily, mon-fri or mon,wed,fri.")
]
DeadlineOption = Annotated[
    str | None,
    typer.Option("--deadline", metavar="DURATION", help="Finish so long after the beginning, like 8h."),
]
BudgetOption = Annotated[
    str | None, typer.Option("--budget", metavar="USD", help="Spend at most this much in a night.")
]
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
    Train a job every night, with no machine of yours.

    A function in the cloud begins each night as `launch --nightly` would, and looks after its run once a minute until
    that has ended. Between nights nothing runs. To change the job, its files or its times, install it again.
    """
    from datetime import UTC, datetime, timedelta
    from pathlib import Path

    from spotrun import address
    from spotrun.clouds.cloud import Wish
    from spotrun.clouds.registry import cloud_of
    from spotrun.errors import CloudUnavailable, SpotrunError
    from spotrun.folder.night_record import Night, NightRecord
    from spotrun.night.rows import HOURS, NIGHTS_A_MONTH
    from spotrun.night.times import next_due, read_at, read_days, shortest_gap, winter_offset_s
    from spotrun.report.tables import dollars
    from spotrun.runs.asking import confirm, say
    from spotrun.runs.first_look import with_baseline_price
    from spotrun.runs.open_run import default_store
    from spotrun.runs.prepared import prepare
    from spotrun.spec.file import load_spec, placed
    from spotrun.version import __version__

    time_of_day, zone = read_at(at)
    on_days = read_days(days)
    overrides: dict[str, object] = {
        "name": name,
        "resources.cloud": cloud,
        "resources.region": region,
        "policy.deadline": deadline,
        "budget.max_usd": budget,
        "checkpoint.uri": None if store is None else address.absolute(store),
    }
    with placed(spec_path, overrides):
        spec = with_baseline_price(load_spec(spec_path, overrides, default_store()))
        of_cloud = cloud_of(spec)
        regions = of_cloud.regions(spec, Wish())
        nights = of_cloud.nights(regions[0] if regions else "", spec)
        _refuse_what_needs_a_machine(spec)
        _require_webhooks(spec, nights)
        nights.require(spec.name, spec.checkpoint.uri)
        prepared = prepare(spec, later=True)
    prepared.show()
    now = datetime.now(UTC)
    limit = spec.policy.deadline
    hours = limit.total_seconds() / 3600 if isinstance(limit, timedelta) else HOURS
    usd = nights.usd(hours)
    say(f"{spec.name}: {','.join(on_days)} at {time_of_day} {zone}, from {regions[0]}.")
    say(
        f"What calls the runner costs about {dollars(usd)} in a night of {hours:g} h, "
        f"and {dollars(usd * NIGHTS_A_MONTH)} in {NIGHTS_A_MONTH} of them."
    )
    if timedelta(hours=hours) > shortest_gap(on_days):
        say("note: a night may last until the next one is due, which then begins no run and carries this one on")
    confirm(yes, "Install?", default=False, declined="nothing was installed")
    function = nights.build()
    record = NightRecord(spec.checkpoint.uri, spec.name)
    night = Night(
        name=spec.name,
        spec=spec.model_copy(update={"workdir": "/"}).to_dict(),  # the function has another folder, with the same files
        workdir_sha256=record.upload(Path(spec.workdir)),
        at=time_of_day,
        zone=zone,
        days=on_days,
        winter_offset_s=winter_offset_s(zone, now),
        cloud=of_cloud.name,
        region=regions[0],
        installed_at=now,
        spotrun=__version__,
        webhooks=tuple(sorted({place.name for place in spec.webhook_references.values()})),
    )
    before = record.known()
    record.install(night)
    try:
        nights.install(night, spec.checkpoint.uri, function, say)
    except CloudUnavailable:
        raise  # the installation may still succeed
    except SpotrunError:
        record.put_back(before)
        raise
    nights.look(night.name)
    due = next_due(night, now)
    print(f"installed {night.name}" + ("" if due is None else f"; the next night is due at {due:%Y-%m-%d %H:%M} UTC"))


def _refuse_what_needs_a_machine(spec: RunSpec) -> None:
    """
    Raises:
        SpecInvalid: the job names what only a machine of its user has.
    """
    from datetime import timedelta

    from spotrun.errors import SpecInvalid

    for number, receiver in enumerate(spec.notify):
        if receiver.command is not None:
            raise SpecInvalid(
                "a night has no machine of yours that could run this command",
                hint="write webhook: $SLACK_WEBHOOK, and keep its address in the cloud (docs/night.md)",
                key=("notify", number, "command"),
            )
    if spec.policy.deadline is not None and not isinstance(spec.policy.deadline, timedelta):
        raise SpecInvalid(
            "a night needs a deadline that counts from its beginning", hint="--deadline 8h", key=("policy", "deadline")
        )
    advisor = spec.aws.advisor
    if advisor is not None and "://" not in advisor:
        raise SpecInvalid(
            f"{advisor} is a file of this machine", hint="name the file by its URL", key=("aws", "advisor")
        )


def _require_webhooks(spec: RunSpec, nights: Nights) -> None:
    """
    Raises:
        SpecInvalid: an address is none.
        SecretUnreadable: there is none.
    """
    from spotrun.notify.sinks import require_https

    places = spec.webhook_references
    if not places:
        return
    found = nights.addresses(places)
    for variable, place in places.items():
        require_https(variable, found[variable], place.name, hint=nights.put_address(place))


def list_nights(store: StoreOption = None, as_json: JsonOption = False) -> None:
    """List the nights that are installed: when they are due, what became of the last one, and what calling costs."""
    from datetime import UTC, datetime

    from msgspec import to_builtins

    from spotrun.errors import StoreError
    from spotrun.folder.night_record import names
    from spotrun.night.rows import Row, row_of, show
    from spotrun.runs.open_run import default_store

    folder, now = store or default_store(), datetime.now(UTC)
    rows, unread = list[Row](), list[StoreError]()
    for name in names(folder):
        try:
            rows.append(row_of(folder, name, now))
        except StoreError as error:
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
    """Begin a night now, as if it were due; a run that goes on is carried on."""
    from datetime import UTC, datetime

    night, nights = _installed(name, store)
    answer = nights.begin(night.name, datetime.now(UTC))
    trouble = f" ({answer['trouble']})" if answer.get("trouble") else ""
    print(f"{answer.get('run')}: {answer.get('state')}{trouble}")


def remove(name: NightArgument, store: StoreOption = None, yes: YesOption = False) -> None:
    """Remove a night and what calls it. Its runs stay; one that goes on loses its runner."""
    from spotrun.folder.night_record import NightRecord
    from spotrun.night.rows import newest_run
    from spotrun.runs.asking import confirm, say
    from spotrun.runs.open_run import default_store

    night, nights = _installed(name, store)
    folder = store or default_store()
    last = newest_run(folder, name)
    if last is not None and last.ledger.refresh().terminal is None:
        say(
            f"note: {last.id} goes on without a runner, and its instance ends by itself when its time is over. "
            f"`spotrun resume {last.typed}` attends to it, `spotrun down {last.typed}` ends it now"
        )
    confirm(yes, f"Remove the night {name}?", default=False, declined="nothing was removed")
    nights.remove(night.name, folder, say)
    NightRecord(folder, name).remove()
    print(f"removed {name}")


def _installed(name: str, store: str | None) -> tuple[Night, Nights]:
    from spotrun.clouds.registry import nights_of
    from spotrun.folder.night_record import NightRecord
    from spotrun.runs.open_run import default_store

    night = NightRecord(store or default_store(), name).read()
    return night, nights_of(night)


app = typer.Typer(
    context_settings=HELP,
    name="night",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    help="Train a job every night, with no machine of yours.",
)
VERBS: Verbs = {
    "install": (install, 'train.yaml --at "22:00 Europe/Berlin" --days mon-fri --deadline 8h --budget 15 --cloud aws'),
    "ls": (list_nights, "--json"),
    "run": (run, "resnet50"),
    "rm": (remove, "resnet50"),
}
"""Each with the arguments of an example for its help."""
add_verbs(app, "spotrun night", VERBS)
