"""
Reads Google's history of spot capacity through the method `advice.capacityHistory`. The method is in Preview and needs
a separate permission: https://cloud.google.com/compute/docs/instances/view-spot-preemption-price. Google has no history
of N1 machines with GPUs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple
from urllib.parse import quote

from spotrun.clouds.gcp.calls import COMPUTE, Call, Google
from spotrun.errors import AccessDenied, CloudError, CloudUnavailable, QuotaExceeded

Kind = Literal["PRICE", "PREEMPTION"]


class Histories(NamedTuple):
    """Google's answers, keyed by instance type. `troubles` gives the reason for each type without an answer."""

    answers: Mapping[str, Mapping[str, Any]]
    troubles: Mapping[str, str]


def histories(google: Google, project: str, region: str, types: Sequence[str], kind: Kind) -> Histories:
    """
    Read the histories of these types, with one call for each type. Refusals are not raised, but returned as `troubles`.
    If Google refuses a call for a reason that applies to all types, make no further calls.
    """
    answers: dict[str, Mapping[str, Any]] = {}
    troubles: dict[str, str] = {}
    for place, name in enumerate(types):
        try:
            answers[name] = google.ask(f"read {name}'s history in {region}", _question(project, region, name, kind))
        except (AccessDenied, CloudUnavailable, QuotaExceeded) as error:
            troubles.update(dict.fromkeys(types[place:], error.message))
            break
        except CloudError as error:
            troubles[name] = error.message
    return Histories(answers, troubles)


def _question(project: str, region: str, name: str, kind: Kind) -> Call:
    path = f"projects/{quote(project, safe=':')}/regions/{quote(region)}/advice/capacityHistory"
    asked = {"machineType": name, "scheduling": {"provisioningModel": "SPOT"}}
    return Call(COMPUTE, "POST", path, body={"instanceProperties": asked, "types": [kind]})
