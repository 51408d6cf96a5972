"""
Puts a job in the words of SkyPilot into ours (https://docs.skypilot.co/en/latest/reference/yaml-spec.html).

A key that means the same here is moved to ours. One that has no counterpart becomes a problem that says what to write
instead; none is left out without a word. `spotrun.spec.file` does this to every job, so a file may mix both.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from spotrun.secrets.named_values import names_secret
from spotrun.spec.clouds import BUILT_IN, find_cloud
from spotrun.spec.model import RunSpec
from spotrun.spec.problems import Key, Problem, dotted, keys_of
from spotrun.spec.sky_candidates import Candidates, Wish, read_place
from spotrun.spec.sky_mounts import no_mount
from spotrun.spec.values import kind_of
from spotrun.units import Unreadable, shown

SET_IN_RUN = frozenset(f"SKYPILOT_{name}" for name in ("NUM_NODES", "NODE_RANK", "NODE_IPS", "NUM_GPUS_PER_NODE"))
"""Of its variables, those that a training finds (spotrun/agent/place_in_gang.py), beside the one below."""
SET_EVERYWHERE = "SKYPILOT_TASK_ID"
DISK_LEAST, DISK_MOST = 10, 16_000
"""GiB: what both clouds allow."""
DISKS = tuple(path.removesuffix(".volume_gb") for path in keys_of(RunSpec) if path.endswith(".volume_gb"))
"""The sections that say how large a disk is."""
OURS = ("accelerators", "memory")
"""Names that both have."""
RECOVERS = "spotrun always recovers from an interruption"
ENDS = "spotrun ends each instance as soon as its run is over"
_NULLS = ("", "~", "null", "Null", "NULL")
"""What YAML takes for no value."""
_RESOURCES = "resources"
_SIZE = re.compile(r"(\d{1,9}(?:\.\d{1,3})?)\s*(?:([kmgtp])i?b?)?(\+?)", re.ASCII | re.IGNORECASE)
_KIB_IN: dict[str, int] = {unit: 1024**power for power, unit in enumerate("kmgtp")}
_VARIABLE = re.compile(r"\$(?:\{[!#]?(\w+)([^}]*)\}|(\w+))", re.ASCII)
_WITH_DEFAULT = ("-", ":-", "+", ":+")


@dataclass
class Translation:
    """
    `data` is what a file says; it is changed in place. `unreadable` are the keys whose values YAML could not read.

    `taken` says what became of a key of SkyPilot's, and `spelled` has the user's key by ours. The problems that YAML
    had with the keys in `cleared` count for nothing.
    """

    data: dict[str, Any]
    unreadable: set[Key]
    taken: dict[Key, str] = field(default_factory=dict)
    spelled: dict[Key, Key] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    cleared: list[Key] = field(default_factory=list)

    def section(self, name: str) -> dict[str, Any] | None:
        """The mapping at `name`, made if the file has none; None if it is no mapping."""
        found = self.data.setdefault(name, {})
        return found if isinstance(found, dict) else None

    def refuse(self, key: Key, message: str, suggestion: str | None) -> None:
        self.problems.append(Problem(key, message, suggestion))

    def put(self, ours: Key, value: object, theirs: Key) -> bool:
        """Set our key, which stands for theirs; False if the file has ours too, which is a problem then."""
        holder = self.data if len(ours) == 1 else self.section(str(ours[0]))
        if holder is None:
            return False
        name = str(ours[-1])
        if name in holder:
            other = name if ours[:-1] == theirs[:-1] else dotted(ours)
            self.refuse(theirs, f"cannot be combined with {other}", f"keep one of {theirs[-1]} and {other}")
            return False
        holder[name] = value
        self.spelled[ours] = theirs
        return True

    def say(self, key: Key, *words: str) -> None:
        self.taken[key] = ", ".join(words)


def translate(data: dict[str, Any], unreadable: set[Key]) -> Translation:
    """Change `data` to our words as far as they have the same meaning."""
    found = Translation(data, unreadable)
    resources = data.get(_RESOURCES)
    if isinstance(resources, dict):
        _take_infra(found, resources)
        for name, take in _OF_RESOURCES.items():
            key: Key = (_RESOURCES, name)
            if name in resources and _read(found, key, resources):
                take(found, key, resources)
        _take_candidates(found, resources)
    _take_nothings(found)
    _take_envs(found)
    _take_mounts(found)
    _take_config(found)
    _look_into_commands(found)
    return found


def _read(found: Translation, key: Key, resources: dict[str, Any]) -> bool:
    """Whether YAML could read all that is at `key`. If it could not, that is the problem, and ours do without it."""
    unread = any(key[: len(above)] == above or above[: len(key)] == key for above in found.unreadable)
    if unread and key[-1] not in OURS:
        del resources[str(key[-1])]
    return not unread


# -- resources -------------------------------------------------------------------------------------------------------


def _take_infra(found: Translation, resources: dict[str, Any]) -> None:
    key: Key = (_RESOURCES, "infra")
    if "infra" not in resources or not _read(found, key, resources):
        return
    value = resources.pop("infra")
    try:
        place = read_place(value)
    except Unreadable as error:
        found.refuse(key, error.message, error.suggestion)
        return
    given = place.given()
    if not given:
        found.say(key, "any cloud, as if it were not there")
    for name, text in given.items():
        if not found.put((_RESOURCES, name), text, key):
            return
    found.taken.setdefault(key, _all_of(given))


def _all_of(given: dict[str, str]) -> str:
    return ", ".join(f"resources.{name}: {shown(text)}" for name, text in given.items())


def _take_gpus(found: Translation, key: Key, resources: dict[str, Any]) -> None:
    """SkyPilot's other name of accelerators. A number alone is of another tool."""
    if isinstance(resources["gpus"], int):
        return
    value = resources.pop("gpus")
    if found.put((_RESOURCES, "accelerators"), value, key):
        found.say(key, "resources.accelerators")


def _take_accelerators(found: Translation, key: Key, resources: dict[str, Any]) -> None:
    if isinstance(resources["accelerators"], list):
        found.say(key, "a choice by dollars per sample: the order of the list is none of preference")


def _take_memory(found: Translation, key: Key, resources: dict[str, Any]) -> None:
    """`1024MB`, `1.5TB`; those in GB are read as they are."""
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
        found.refuse(key, f"an instance on {cloud} has the disks that it has", "remove it")
    elif all(found.put((section, "volume_gb"), size, key) for section in DISKS):
        found.say(key, *(f"{section}.volume_gb: {size}" for section in DISKS))


def _take_image(found: Translation, key: Key, resources: dict[str, Any]) -> None:
    """A machine image of one of our clouds. Containers are left for the words of `spotrun.spec.problems`."""
    value = resources["image_id"]
    if isinstance(value, dict):
        _take_image_of_region(found, key, resources, value)
        return
    if not isinstance(value, str) or value.startswith("docker:"):
        return
    for pattern, cloud, ours in (("ami-", "aws", "image_id"), ("projects/", "gcp", "image")):
        if value.startswith(pattern):
            del resources["image_id"]
            if resources.get("cloud", cloud) != cloud:
                found.refuse(key, f"{shown(value)} is an image of {cloud}", "name one of your cloud, or remove it")
            elif found.put((cloud, ours), value, key):
                found.say(key, f"{cloud}.{ours}")
            return
    if ":" in value or value.startswith("ocid1."):
        del resources["image_id"]
        advice = "remove it: instances get an image with drivers and PyTorch; or name yours, like ami-…"
        found.refuse(key, f"{shown(value)} is no image that spotrun can start", advice)


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
    """What SkyPilot does to an idle cluster, each run of ours does to its instances."""
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
        found.refuse(key, "is no key of autostop", f"remove it: {ENDS}")


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
            found.refuse(at, "exit codes are not told apart", "remove it, and write retry: {max_restarts: 10}")
        else:
            found.refuse(at, f"is no key of {key[-1]}", f"remove it: {RECOVERS}")
    found.say(key, *words)


def _take_strategy(found: Translation, key: Key, value: object) -> None:
    """Ours is to ask wherever the job may run, and last where an instance has just been taken."""
    name = str(value).upper()
    if name == "FAILOVER":
        advice = "remove it; to stay in one region name it, like infra: aws/us-east-1"
        found.refuse(key, "spotrun does not prefer the place that has just taken an instance", advice)
    elif name not in ("NONE", "EAGER_NEXT_REGION", "EAGER_FAILOVER"):
        found.refuse(key, f"{shown(value)} is no way to recover", f"remove it: {RECOVERS}")


_Take = Callable[[Translation, Key, dict[str, Any]], None]
_OF_RESOURCES: dict[str, _Take] = {
    "gpus": _take_gpus,
    "accelerators": _take_accelerators,
    "memory": _take_memory,
    "max_hourly_cost": _take_max_cost,
    "disk_size": _take_disk,
    "image_id": _take_image,
    "autostop": _take_autostop,
    "job_recovery": _take_recovery,
    "spot_recovery": _take_recovery,
}


def _take_candidates(found: Translation, resources: dict[str, Any]) -> None:
    """`any_of` and `ordered`: candidates that may be written as places and kinds of instances, each by itself."""
    for name in ("any_of", "ordered"):
        key: Key = (_RESOURCES, name)
        if name not in resources or not _read(found, key, resources):
            continue
        listed = resources.pop(name)
        try:
            wishes = Candidates.read(listed, resources, in_order=name == "ordered").wishes()
        except Unreadable as error:
            found.refuse((*key, *error.at), error.message, error.suggestion)
            continue
        words = [said for wish in wishes if (said := _fulfil(found, key, wish))]
        found.say(key, *words or ("the resources beside it",))


def _fulfil(found: Translation, key: Key, wish: Wish) -> str | None:
    """What becomes of a part of the candidates at `key`. They say more than the resources beside them."""
    holder = found.section(wish.section)
    if holder is None:
        return None
    before = holder.pop(wish.name, None)
    if wish.value is None:
        return None
    if wish.section != _RESOURCES and before is not None:
        other = f"{wish.section}.{wish.name}"
        found.refuse(key, f"cannot be combined with {other}", f"keep one of {key[-1]} and {other}")
        return None
    holder[wish.name] = wish.value
    found.spelled |= {(wish.section, wish.name, *below): (*key, *at) for below, at in wish.spelled}
    return None if before == wish.value else f"{wish.section}.{wish.name}: {wish.shown}"


# -- the rest --------------------------------------------------------------------------------------------------------


def _take_nothings(found: Translation) -> None:
    """Keys that ask for nothing, which is what happens here."""
    if found.data.get("api_server_access") is False:
        del found.data["api_server_access"]
        found.say(("api_server_access",), "what happens anyway: a training gets no credentials of a server")


def _take_envs(found: Translation) -> None:
    """A variable without a value is asked for at the launch. A secret without one is named, which is all we want."""
    for section in ("envs", "secrets"):
        values = found.data.get(section)
        if not isinstance(values, dict):
            continue
        for name in values:
            key: Key = (section, name)
            if section == "envs" and name.startswith("SKYPILOT_") and "_DOCKER_" in name:
                found.cleared.append(key)
                reason = "logs in where containers come from, and a training runs in none"
                found.refuse(key, reason, "remove it")
            elif key in found.unreadable and values[name] in _NULLS:
                found.cleared.append(key)
                values[name] = ""
                if section == "envs":
                    found.refuse(key, "has no value", _value_for(name))


def _value_for(name: str) -> str:
    given = f"give one by `--env {shown(name)}=…`, or write it"
    return f"remove it, and write secrets: [{shown(name)}]" if names_secret(name) else given


def _take_mounts(found: Translation) -> None:
    mounts = found.data.get("file_mounts")
    if not isinstance(mounts, dict):
        return
    del found.data["file_mounts"]
    read = [(target, source) for target, source in mounts.items() if ("file_mounts", target) not in found.unreadable]
    for target, source in read:
        refused = no_mount(target, source)
        found.refuse(("file_mounts", target, *refused.at), refused.message, refused.suggestion)
    if not mounts:
        found.say(("file_mounts",), "nothing: it is empty")


def _take_config(found: Translation) -> None:
    config = found.data.get("config")
    if isinstance(config, dict) and "hooks" in config:
        del config["hooks"]
        advice = "remove it; let the command save when it gets SIGTERM, which comes before an instance goes"
        found.refuse(("config", "hooks"), "nothing of a job runs when an instance ends", advice)
        if not config:
            del found.data["config"]


def _look_into_commands(found: Translation) -> None:
    envs, secrets = found.data.get("envs"), found.data.get("secrets")
    given = {*envs} if isinstance(envs, dict) else set()
    hidden = {*map(str, secrets)} if isinstance(secrets, dict | list) else set()
    for name in ("setup", "run"):
        text = found.data.get(name)
        if isinstance(text, str):
            for message, suggestion in _unmet(name, text, given, hidden):
                found.refuse((name,), message, suggestion)


def _unmet(command: str, text: str, given: set[str], hidden: set[str]) -> Iterator[tuple[str, str]]:
    """What a command expects and does not find here."""
    if "sky_workdir" in text:
        yield "there is no ~/sky_workdir: commands begin in the work folder", "remove the cd, or write a relative path"
    for name in dict.fromkeys(_needed_variables(text)):
        if command == "setup" and name in hidden:
            yield f"{name} is a secret, which only the training has", "move the line that needs it into run"
        if not name.startswith("SKYPILOT_") or name in given or name == SET_EVERYWHERE:
            continue
        if command == "setup":
            yield f"setup does not know its node, so ${name} is empty", "move the line that needs it into run"
        elif name not in SET_IN_RUN:
            yield f"${name} is not set here", f"write ${{{name}:-…}} with what it is otherwise, or name it in envs"


def _needed_variables(text: str) -> Iterator[str]:
    for braced, rest, plain in _VARIABLE.findall(text):
        if not rest.startswith(_WITH_DEFAULT):
            yield braced or plain


def differences(data: dict[str, Any]) -> Iterator[str]:
    """What SkyPilot and spotrun make of keys that a file leaves out; `data` is in our words, as the file says it."""
    resources = data.get(_RESOURCES)
    resources = resources if isinstance(resources, dict) else {}
    if "cloud" not in resources:
        yield "no cloud is named: SkyPilot takes the cheapest, spotrun rehearses on this machine; infra: aws rents"
    if not {"use_spot", "spot_policy"} & resources.keys():
        yield "use_spot is not there: SkyPilot rents on demand, spotrun spot where it can; use_spot: false is on demand"
    if "workdir" not in data:
        yield "workdir is not there: SkyPilot uploads nothing, spotrun the folder of the file"
    elif not str(data["workdir"]).startswith(("/", "~")):
        yield "workdir is relative to the file; SkyPilot reads it relative to where it is called"
    if "retry" not in data:
        yield "a command that fails is started again twice; retry: {max_restarts: 0} is SkyPilot's default"
