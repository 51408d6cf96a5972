"""Translates the keys of SkyPilot's section `resources`."""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from spotrun.spec.clouds import BUILT_IN, find_cloud
from spotrun.spec.image import PREFIX, image_of
from spotrun.spec.model import RunSpec
from spotrun.spec.problems import Key, keys_of
from spotrun.spec.sky.candidates import OWN, Candidates, JobValue, read_place
from spotrun.spec.sky.translation import Translation
from spotrun.spec.values import kind_of
from spotrun.units import Unreadable, shown

DISK_LEAST, DISK_MOST = 10, 16_000
"""Minimum and maximum size of a disk in GiB that all clouds allow."""
DISKS = tuple(path.removesuffix(".volume_gb") for path in keys_of(RunSpec) if path.endswith(".volume_gb"))
"""The sections of a job in which the size of the disk can be set, one for each cloud that allows this."""
OURS = ("accelerators", "memory")
"""Keys that both tools have. All other keys here exist only in SkyPilot."""
RECOVERS = "spotrun always recovers from an interruption"
ENDS = "spotrun ends each instance as soon as its run is over"
_RESOURCES = "resources"
_SIZE = re.compile(r"(\d{1,9}(?:\.\d{1,3})?)\s*(?:([kmgtp])i?b?)?(\+?)", re.ASCII | re.IGNORECASE)
_TAGS_OF_SKYPILOT = "skypilot:"
"""Prefix of the names that SkyPilot gives to its own machine images."""
_BEFORE_A_NAME = re.compile(r"docker:(//)?|docker-image://", re.IGNORECASE)
_KIB_IN: dict[str, int] = {unit: 1024**power for power, unit in enumerate("kmgtp")}


def _take_infra(found: Translation, key: Key, resources: dict[str, Any]) -> None:
    try:
        place = read_place(resources.pop("infra"))
    except Unreadable as error:
        found.refuse(key, error.message, error.suggestion)
        return
    given = place.given()
    if not given:
        found.say(key, "any cloud, as if the key were missing")
    for name, text in given.items():
        if not found.put((_RESOURCES, name), text, key):
            return
    found.taken.setdefault(key, _all_of(given))


def _all_of(given: dict[str, str]) -> str:
    return ", ".join(f"resources.{name}: {shown(text)}" for name, text in given.items())


def _take_gpus(found: Translation, key: Key, resources: dict[str, Any]) -> None:
    """
    Translate `gpus`, another name for `accelerators` in SkyPilot. If the value is only a number, do nothing: SkyPilot
    has no such form, and a later check refuses it.
    """
    if isinstance(resources["gpus"], int):
        return
    value = resources.pop("gpus")
    if found.put((_RESOURCES, "accelerators"), value, key):
        found.say(key, "resources.accelerators")


def _take_accelerators(found: Translation, key: Key, resources: dict[str, Any]) -> None:
    if isinstance(resources["accelerators"], list):
        found.say(key, "a choice by dollars per sample: the order of the list does not count")


def _take_memory(found: Translation, key: Key, resources: dict[str, Any]) -> None:
    """Convert sizes like `1024MB` and `1.5TB` to GB. Sizes in GB stay as they are."""
    match = _SIZE.fullmatch(str(resources["memory"]))
    gigabytes = None if match is None or match[2] in (None, "g", "G") else _gigabytes(match)
    if match is not None and gigabytes is not None and gigabytes == round(gigabytes, 3):
        resources["memory"] = f"{gigabytes.normalize():f}{match[3]}"
        found.say(key, f"{resources['memory']} GB")


def _gigabytes(size: re.Match[str]) -> Decimal:
    return Decimal(size[1]) * Decimal(_KIB_IN[(size[2] or "g").lower()]) / Decimal(_KIB_IN["g"])


def _take_max_cost(found: Translation, key: Key, resources: dict[str, Any]) -> None:
    if found.put((_RESOURCES, "max_price"), resources.pop("max_hourly_cost"), key):
        found.say(key, "resources.max_price")


def _take_disk(found: Translation, key: Key, resources: dict[str, Any]) -> None:
    value = resources.pop("disk_size")
    match = None if isinstance(value, bool) else _SIZE.fullmatch(str(value))
    size = 0 if match is None or match[3] else int(_gigabytes(match))
    if match is None or match[3]:
        found.refuse(key, f"{shown(value)!r} is not the size of a disk in GB", "write a whole number, like 256")
    elif not DISK_LEAST <= size <= DISK_MOST:
        nearest = min(max(size, DISK_LEAST), DISK_MOST)
        found.refuse(key, f"must be from {DISK_LEAST} to {DISK_MOST:,} GB, not {size}", f"write {nearest}")
    elif (cloud := resources.get("cloud")) in BUILT_IN and cloud not in DISKS and not find_cloud(cloud).here:
        found.refuse(key, f"the disks of an instance on {cloud} cannot be chosen", "remove it")
    elif all(found.put((section, "volume_gb"), size, key) for section in DISKS):
        found.say(key, *(f"{section}.volume_gb: {size}" for section in DISKS))


def _take_image(found: Translation, key: Key, resources: dict[str, Any]) -> None:
    """
    Move a machine image to the section of its cloud. Leave a container image in `image_id`, a key that
    spotrun has too.
    """
    value = resources["image_id"]
    if isinstance(value, dict):
        _take_image_of_region(found, key, resources, value)
        return
    if not isinstance(value, str) or value.startswith(PREFIX):
        return
    for pattern, cloud, ours in (("ami-", "aws", "image_id"), ("projects/", "gcp", "image")):
        if value.startswith(pattern):
            del resources["image_id"]
            if _rents_elsewhere(resources, cloud):
                found.refuse(key, f"{shown(value)} is an image of {cloud}", "name an image of your cloud, or remove it")
            elif found.put((cloud, ours), value, key):
                found.say(key, f"{cloud}.{ours}")
            return
    if (container := _container_of(value)) is not None:
        del resources["image_id"]
        found.refuse(key, f"{shown(value)} is not a machine image", f"write {container} for that container image")
    elif ":" in value or value.startswith("ocid1."):
        del resources["image_id"]
        advice = "remove it: instances get an image with drivers and PyTorch; or name yours, like ami-…"
        found.refuse(key, f"{shown(value)} is not an image that spotrun can start", advice)


def _container_of(value: str) -> str | None:
    """Return the container image that `value` names, with the prefix `docker:`; None if it names no container image."""
    if value.startswith(_TAGS_OF_SKYPILOT):
        return None
    try:
        image_of(container := PREFIX + _BEFORE_A_NAME.sub("", value))
    except Unreadable:
        return None
    return container


def _rents_elsewhere(resources: dict[str, Any], cloud: str) -> bool:
    named = resources.get("cloud", cloud)
    return named != cloud and not (named in BUILT_IN and find_cloud(named).here)


def _take_image_of_region(found: Translation, key: Key, resources: dict[str, Any], by_region: dict[str, Any]) -> None:
    del resources["image_id"]
    if len(by_region) != 1:
        advice = "keep one, and write image_id: ami-… and region: NAME"
        found.refuse(key, "names an image for each of several regions, and a run has one", advice)
        return
    region, image = next(iter(by_region.items()))
    if resources.get("region", region) != region:
        found.refuse((*key, region), f"resources.region is {shown(resources['region'])}", "keep one of them")
    elif "region" in resources or found.put((_RESOURCES, "region"), region, (*key, region)):
        resources["image_id"] = image
        _take_image(found, key, resources)


def _take_autostop(found: Translation, key: Key, resources: dict[str, Any]) -> None:
    """
    Remove `autostop` if it requests what spotrun always does: end a run's instances as soon as the run is over. Refuse
    any other setting.
    """
    value = resources.pop("autostop")
    settings = value if isinstance(value, dict) else {}
    if value is False or (isinstance(value, int) and value < 0):
        found.refuse(key, ENDS, "remove it; what the run made stays in its folder, for `spotrun fetch`")
    elif not isinstance(value, dict | int | str) or (
        isinstance(value, str) and not re.fullmatch(r"\d{1,6}[mhdw]?", value, re.ASCII)
    ):
        found.refuse(key, f"is a time like 10m, or true, not {kind_of(value)}", f"remove it: {ENDS}")
    for name, setting in settings.items():
        _take_setting_of_autostop(found, (*key, name), setting)
    found.say(key, f"what happens anyway: {ENDS}")


def _take_setting_of_autostop(found: Translation, key: Key, value: object) -> None:
    name = key[-1]
    if name == "wait_for" and str(value).lower() == "none":
        found.refuse(key, "ends instances while the job still runs", "write max_duration: 8h, at the top of the file")
    elif name in ("hook", "hook_timeout"):
        found.refuse(key, "nothing runs on an instance after its run", "write the command at the end of run")
    elif name not in ("idle_minutes", "down", "wait_for"):
        found.refuse(key, "is not a key of autostop", f"remove it: {ENDS}")


def _take_recovery(found: Translation, key: Key, resources: dict[str, Any]) -> None:
    value = resources.pop(str(key[-1]))
    settings = value if isinstance(value, dict) else {"strategy": value}
    words = [f"what happens anyway: {RECOVERS}"]
    for name, setting in settings.items():
        at: Key = (*key, name) if isinstance(value, dict) else key
        if name == "strategy":
            _take_strategy(found, at, setting)
        elif name == "max_restarts_on_errors":
            if found.put(("retry", "max_restarts"), setting, at):
                words.append(f"retry.max_restarts: {shown(setting)}")
        elif name == "recover_on_exit_codes":
            found.refuse(at, "exit codes are not distinguished", "remove it, and write retry: {max_restarts: 10}")
        else:
            found.refuse(at, f"is not a key of {key[-1]}", f"remove it: {RECOVERS}")
    found.say(key, *words)


def _take_strategy(found: Translation, key: Key, value: object) -> None:
    """
    Refuse a recovery strategy that differs from spotrun's. After an interruption, spotrun tries all allowed zones, the
    zone of the interruption last.
    """
    name = str(value).upper()
    if name == "FAILOVER":
        advice = "remove it; to stay in one region name it, like infra: aws/us-east-1"
        found.refuse(key, "spotrun does not prefer the place that has just taken an instance", advice)
    elif name not in ("NONE", "EAGER_NEXT_REGION", "EAGER_FAILOVER"):
        found.refuse(key, f"{shown(value)} is not a way to recover", f"remove it: {RECOVERS}")


def _take_candidates(found: Translation, key: Key, resources: dict[str, Any]) -> None:
    """
    Translate `any_of` and `ordered`. spotrun has one list of places and one list of kinds, and combines them freely.
    Refuse candidates that cannot be expressed in this way.
    """
    listed = resources.pop(str(key[-1]))
    if "ordered" in resources:
        found.refuse(key, "cannot be combined with ordered", "keep one of them")
        return
    try:
        wishes = Candidates.read(listed, resources, in_order=key[-1] == "ordered").wishes()
    except Unreadable as error:
        found.refuse((*key, *error.at), error.message, error.suggestion)
        return
    words = [said for wish in wishes if (said := _fulfil(found, key, wish))]
    found.say(key, *words or ("the resources next to it",))


def _fulfil(found: Translation, key: Key, wish: JobValue) -> str | None:
    """
    Set or remove one of spotrun's keys, as `wish` says. It was derived from the candidates at `key`. Return a
    description of the change; None if nothing changed, or if the change was refused.
    """
    holder = found.section(wish.section)
    if holder is None:
        return None
    before = holder.pop(wish.name, None)
    if wish.value is None:
        return None
    if wish.name not in OWN and before is not None:
        other = f"{wish.section}.{wish.name}"
        found.refuse(key, f"cannot be combined with {other}", f"keep one of {key[-1]} and {other}")
        return None
    holder[wish.name] = wish.value
    found.spelled |= {(wish.section, wish.name, *below): (*key, *at) for below, at in wish.spelled}
    return None if before == wish.value else f"{wish.section}.{wish.name}: {wish.shown}"


_Take = Callable[[Translation, Key, dict[str, Any]], None]
_KEYS: dict[str, _Take] = {
    "infra": _take_infra,
    "gpus": _take_gpus,
    "accelerators": _take_accelerators,
    "memory": _take_memory,
    "max_hourly_cost": _take_max_cost,
    "disk_size": _take_disk,
    "image_id": _take_image,
    "autostop": _take_autostop,
    "job_recovery": _take_recovery,
    "spot_recovery": _take_recovery,
    "any_of": _take_candidates,
    "ordered": _take_candidates,
}
"""
The functions that translate SkyPilot's keys, in the order in which they are called. The functions for `any_of` and
`ordered` come last. They need the translated values of all other keys in `resources`, because these values apply to
each candidate in the list.
"""


def take_resources(found: Translation) -> None:
    resources = found.data.get(_RESOURCES)
    if not isinstance(resources, dict):
        return
    for name, take in _KEYS.items():
        key: Key = (_RESOURCES, name)
        if name in resources and _read(found, key, resources):
            take(found, key, resources)


def _read(found: Translation, key: Key, resources: dict[str, Any]) -> bool:
    """
    Return True if the YAML reader could read the whole value at `key`. If it could not, it has already recorded the
    problem. Then return False, and remove the key, unless spotrun has a key of the same name.
    """
    unread = any(key[: len(above)] == above or above[: len(key)] == key for above in found.unreadable)
    if unread and key[-1] not in OURS:
        del resources[str(key[-1])]
    return not unread
