"""
Formats a run's account for programs, as JSON and CSV. The keys do not change, because other programs read them.

Dollars are decimal strings, times are in seconds, and epochs count from 1. `attempt` is the number of the ledger entry
with which the attempt began. (Reports for people number attempts 1, 2, 3 instead.)
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import is_dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict

from spotrun.account.losses import Loss
from spotrun.account.summary import Account, RunSummary
from spotrun.account.timeline import DOWNTIME
from spotrun.report.gaps import for_programs
from spotrun.report.tables import plain
from spotrun.run.events import Cause, SetUp


def report(summary: RunSummary) -> dict[str, Any]:
    """
    Return the part of `spotrun report --json` that is computed from the ledger, as plain values.

    `unfinished` contains the cost and time that belong to no completed epoch. Even in a completed run they are not
    zero, because the run takes some time to end after its last epoch. Only a run of which no runner saw how some
    instances ended has `least_usd` and `most_usd`, between which its cost lies. Only a gang that has trained with
    different numbers of members has `by_members`.
    """
    return json_object(
        run=summary.run,
        state=summary.state,
        time_scale=summary.time_scale,
        epochs=[figures(epoch) for epoch in summary.epochs],
        unfinished=figures(summary.rest),
        total={**figures(summary.total), "savings": rounded(summary.total.savings)},
        interruptions=[_loss(each) for each in summary.losses if each.cause is Cause.INTERRUPTED],
        other_losses=[_loss(each) for each in summary.losses if each.cause is not Cause.INTERRUPTED],
        setups=[setup_figures(attempt, setup) for attempt, setup in summary.setups.items()],
        not_carried=for_programs(summary.gaps),
        **cost_range(summary),
        **of_sizes(summary),
        assumptions=plain(summary.assumptions),
    )


def cost_range(summary: RunSummary) -> dict[str, Decimal]:
    """Return the lowest and the highest possible cost of the run; {} if its cost is known."""
    unseen = summary.unseen
    return {} if unseen is None else {"least_usd": unseen.least_usd, "most_usd": unseen.most_usd}


def of_sizes(summary: RunSummary) -> dict[str, Any]:
    """Return the training and the cost by the number of members that trained; {} if this number never changed."""
    rows = [{"members": each.members, "productive_s": each.productive, "usd": each.usd} for each in summary.by_members]
    return {"by_members": rows} if rows else {}


def figures(account: Account) -> dict[str, Any]:
    """
    Return the figures of one account, with the same keys as in the report. `epoch` is None unless the account covers
    exactly one epoch. Only a run on several instances has `waiting_members_usd`.
    """
    return {
        "epoch": None if account.epoch is None else account.epoch + 1,
        "cost_usd": account.cost_usd,
        "spot_usd": account.spot_usd,
        "on_demand_usd": account.on_demand_usd,
        **({"own_usd": account.own_usd} if account.at_home else {}),
        "storage_usd": account.storage_usd,
        "requests_usd": account.requests_usd,
        "egress_usd": account.egress_usd,
        "wall_s": account.wall,
        "productive_s": account.productive,
        "downtime_s": {kind: account.times[kind] for kind in DOWNTIME},
        "interruptions": account.interruptions,
        "steps_redone": account.steps_redone,
        "counterfactual_usd": account.counterfactual_usd,
        "paid_s": account.paid,
        **({"own_s": account.own_paid} if account.at_home else {}),
        "goodput": rounded(account.goodput),
        "usd_per_productive_hour": account.usd_per_productive_hour,
        **({"waiting_members_usd": account.waiting_usd} if account.size > 1 else {}),
    }


def _loss(found: Loss) -> dict[str, Any]:
    """
    Return a loss's figures. Three of them may be None: the notice's lead time if there was no notice, the age of the
    newest commit if there was no commit before the loss, and the time to the first new step if no new step followed.
    """
    return {
        "attempt": found.attempt,
        "cause": found.cause,
        "members": max(1, len(found.members)),
        **({"lost_members": [*map(str, found.members)]} if found.members else {}),
        "at": found.at,
        "offering": plain(str(found.offering)),
        "notice_lead_s": found.notice_lead,
        "detection_s": found.detection,
        "commit_age_s": found.commit_age,
        "steps_lost": found.steps_lost,
        "to_first_step_s": found.to_first_step,
    }


def setup_figures(attempt: int, setup: SetUp) -> dict[str, Any]:
    """
    Return the figures of an attempt's setup. `how` is "run" if the setup command was executed, and "unpacked" if its
    cached files were unpacked.
    """
    how, size_bytes = plain(setup.how), setup.packed_bytes
    return {"attempt": attempt, "how": how, "seconds": round(setup.seconds, 3), "packed_bytes": size_bytes}


def report_csv(summary: RunSummary) -> str:
    """
    Return the report as CSV: a row for each completed epoch, a row for everything that belongs to no completed epoch,
    and a row for the total.
    """
    whole = report(summary)
    total = {**whole["total"], "epoch": "total"}
    rows = [*whole["epochs"], {**whole["unfinished"], "epoch": summary.rest_name}, total]
    return csv_text([{"savings": None, **row} for row in rows], last="savings")


def usd_text(amount_usd: Decimal) -> str:
    """Return an amount as a decimal number without exponent, to the nano-dollar."""
    return f"{amount_usd:.9f}"


def json_object(usd: Callable[[Decimal], str] = usd_text, /, **fields: object) -> dict[str, Any]:
    """
    Return `fields` as plain values for JSON.

    A Struct, a dataclass or a named tuple becomes an object of its fields. `usd` formats amounts of dollars. Durations
    are in seconds, and times are ISO 8601 strings.
    """
    return {name: _plain_value(value, usd) for name, value in fields.items()}


def _plain_value(value: Any, usd: Callable[[Decimal], str]) -> Any:
    match value:
        case Decimal():
            return usd(value)
        case timedelta():
            return value.total_seconds()
        case datetime():
            return value.isoformat()
        case Enum():
            return str(value)
        case Struct():
            value = asdict(value)
        case tuple() if hasattr(value, "_asdict"):
            value = value._asdict()
        case _ if is_dataclass(value):
            value = vars(value)
    if isinstance(value, Mapping):
        return {str(name): _plain_value(each, usd) for name, each in value.items()}
    return [_plain_value(each, usd) for each in value] if isinstance(value, list | tuple) else value


def rounded(share: float | None) -> float | None:
    return None if share is None else round(share, 6)


def _flat(figures: Mapping[str, Any]) -> dict[str, Any]:
    """Return the figures with a separate key for each kind of downtime."""
    flat = {key: value for key, value in figures.items() if key != "downtime_s"}
    return flat | {f"{cause}_s": seconds for cause, seconds in figures["downtime_s"].items()}


def csv_text(rows: Iterable[Mapping[str, Any]], last: str) -> str:
    """Return comma-separated values with a header line. `last` is the name of the column that comes last."""
    rows = [_flat(row) for row in rows]
    columns = [*dict.fromkeys(column for row in rows for column in row if column != last), last]
    return csv_table(columns, ({column: _cell(value) for column, value in row.items()} for row in rows))


def csv_table(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _cell(value: Any) -> Any:
    """Return the value in a form that a spreadsheet does not read as a formula."""
    if not isinstance(value, str):
        return value
    text = plain(value)
    return f"'{text}" if text.startswith(("=", "+", "-", "@")) and not _is_number(text) else text


def _is_number(text: str) -> bool:
    return text.removeprefix("-").replace(".", "", 1).isdigit()
