"""
Translates a job with SkyPilot's keys to spotrun's keys.

A key that spotrun has under another name is replaced. A key without a counterpart becomes a problem with advice on what
to write instead; no key is dropped silently. `spotrun.spec.file` translates every job, so a file may mix the keys of
both tools.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from spotrun.secrets.named_values import names_secret
from spotrun.spec.image import PASSWORD
from spotrun.spec.problems import Key
from spotrun.spec.sky.commands import look_into_commands
from spotrun.spec.sky.mounts import no_mount
from spotrun.spec.sky.resources import take_resources
from spotrun.spec.sky.translation import Translation
from spotrun.spec.yaml import NULLS
from spotrun.units import shown


def translate(data: dict[str, Any], unreadable: set[Key]) -> Translation:
    """
    Replace SkyPilot's keys in `data` with spotrun's keys of the same meaning. Record each translation, and a problem
    for each key without a counterpart.
    """
    found = Translation(data, unreadable)
    take_resources(found)
    _take_nothings(found)
    _take_envs(found)
    _take_mounts(found)
    _take_config(found)
    look_into_commands(found)
    return found


def _take_nothings(found: Translation) -> None:
    """Remove keys that request what spotrun does anyway."""
    if found.data.get("api_server_access") is False:
        del found.data["api_server_access"]
        found.say(("api_server_access",), "what happens anyway: a training gets no credentials of a server")


def _take_envs(found: Translation) -> None:
    """
    Refuse a variable in `envs` that has no value, although SkyPilot accepts it: SkyPilot's users give the value at the
    launch. A secret without a value is accepted, because a spotrun job contains only the names of secrets.
    """
    for section in ("envs", "secrets"):
        values = found.data.get(section)
        if not isinstance(values, dict):
            continue
        for name in values:
            key: Key = (section, name)
            if key in found.unreadable and values[name] in NULLS:
                found.cleared.append(key)
                values[name] = ""
                if section == "envs" and name != PASSWORD:  # the model reports where a password belongs
                    found.refuse(key, "has no value", _value_for(name))


def _value_for(name: str) -> str:
    given = f"give a value by `--env {shown(name)}=…`, or write it here"
    return f"remove it, and write secrets: [{shown(name)}]" if names_secret(name) else given


def _take_mounts(found: Translation) -> None:
    mounts = found.data.get("file_mounts")
    if not isinstance(mounts, dict):
        return
    del found.data["file_mounts"]
    unread = {key[1] for key in found.unreadable if key[0] == "file_mounts" and len(key) > 1}
    aws = found.data.get("aws")
    own_role = not (isinstance(aws, dict) and "instance_profile" in aws)
    for target, source in mounts.items():
        if target not in unread:
            refused = no_mount(target, source, own_role=own_role)
            found.refuse(("file_mounts", target, *refused.at), refused.message, refused.suggestion)
    if not mounts:
        found.say(("file_mounts",), "nothing: it is empty")


def _take_config(found: Translation) -> None:
    config = found.data.get("config")
    if isinstance(config, dict) and "hooks" in config:
        del config["hooks"]
        advice = "remove it; let the command save when it gets SIGTERM, which comes before an instance ends"
        found.refuse(("config", "hooks"), "no hook runs when an instance ends", advice)
        if not config:
            del found.data["config"]


def differences(data: dict[str, Any]) -> Iterator[str]:
    """
    Yield a note for each key that the translated file lacks and whose default differs between spotrun and SkyPilot.
    """
    resources = data.get("resources")
    resources = resources if isinstance(resources, dict) else {}
    if "cloud" not in resources:
        yield (
            "no cloud is named: SkyPilot takes the cheapest, but spotrun trains on this machine; "
            "for a rented one, write infra: aws"
        )
    if not {"use_spot", "spot_policy"} & resources.keys():
        yield (
            "use_spot is missing: SkyPilot rents on demand, but spotrun rents spot where it can; "
            "for on demand, write use_spot: false"
        )
    if "workdir" not in data:
        yield "workdir is missing: SkyPilot then uploads nothing, but spotrun uploads the file's folder"
    elif not str(data["workdir"]).startswith(("/", "~")):
        yield "workdir is relative to the file; in SkyPilot, it is relative to the folder in which you call it"
    if "retry" not in data:
        yield "a command that fails is started again twice; for SkyPilot's default, write retry: {max_restarts: 0}"
