"""
Refuses all entries of `file_mounts`, both those that mount a bucket and those that copy files to the machine. The
refusal says what to write instead.
"""

from __future__ import annotations

import re
from difflib import get_close_matches
from shlex import quote

from spotrun.spec.values import kind_of
from spotrun.units import Unreadable, shown

COPIES = {"s3": "aws s3 sync", "gs": "gcloud storage rsync -r"}
"""
Commands that copy a bucket to a folder, by the scheme of the bucket's address. On instances of the bucket's own cloud,
the machine image has the command installed.
"""
_CREDENTIALS = ("/.ssh", "/.aws", "/.netrc", "/.config/gcloud", "/.kaggle", "/.huggingface", "/.docker", "/.env")
_KEYS = ("name", "source", "store", "mode", "persistent", "config")
_MODES = ("MOUNT", "COPY", "MOUNT_CACHED")
_REMOTE = re.compile(r"[\w.-]+@[\w.-]+:")
"""Beginning of an address for ssh or git."""
_KEPT = "what the job writes into workdir is stored in the run's folder (`spotrun fetch`)"


def no_mount(target: str, source: object, *, own_role: bool = False) -> Unreadable:
    """
    Return the error that refuses one entry of `file_mounts`: `target` and `source` are its path on the machine and its
    content. If only one key of the entry is wrong, the error names the key (`at`).

    `own_role` is True if the run uses the role that spotrun makes for it on AWS. This role can read only the run's own
    bucket. So if the error advises copying from another bucket, it also says that the job must name a role that can
    read it.
    """
    refused = _no_mount(target, source)
    if own_role and COPIES["s3"] in (refused.suggestion or ""):
        more = f"{refused.suggestion}, and on AWS name a role that can read it: aws: {{instance_profile: NAME}}"
        return Unreadable(refused.message, more, at=refused.at)
    return refused


def _no_mount(target: str, source: object) -> Unreadable:
    if isinstance(source, str):
        return _no_copy(target, source)
    if not isinstance(source, dict):
        return Unreadable(f"must be a path, an address or a mapping, not {kind_of(source)}", "remove it")
    if wrong := next((name for name in source if name not in _KEYS), None):
        nearest = get_close_matches(str(wrong), _KEYS, 1)
        advice = f"did you mean {nearest[0]}?" if nearest else f"known here: {', '.join(_KEYS)}"
        return Unreadable("unknown key", advice, at=(wrong,))
    mode = str(source.get("mode", _MODES[0])).upper()
    if mode not in _MODES:
        return Unreadable(f"{shown(mode)} is not a way to mount", f"write one of {', '.join(_MODES)}", at=("mode",))
    if str(source.get("store", "")).lower() == "volume":
        return Unreadable("no volume is attached to an instance", f"remove it; {_KEPT}")
    origin = source.get("source")
    if origin is None:
        return Unreadable("spotrun neither makes nor mounts a bucket", f"remove it; {_KEPT}")
    if not isinstance(origin, str):
        return Unreadable("only workdir is uploaded", "put these files into workdir, and read them there")
    if "://" not in origin or mode == "COPY":
        return _no_copy(target, origin)
    copied = _copied(origin, target)
    if copied is None:
        return _out_of_reach(origin)
    return Unreadable("nothing is mounted", f"read {_told(origin)} in the script, or write {copied}; {_KEPT}")


def _no_copy(target: str, source: str) -> Unreadable:
    if "://" in source:
        copied = _copied(source, target)
        return Unreadable("no bucket is copied", f"write {copied}") if copied else _out_of_reach(source)
    if any(name in f"/{source.removeprefix('~/')}" for name in _CREDENTIALS):
        return Unreadable("credentials are not copied", "remove it, and write secrets: [NAME] for what is needed")
    if _REMOTE.match(source):
        return Unreadable("nothing is cloned or copied from another machine", "put it into workdir")
    return Unreadable(
        "only workdir is uploaded", f"put {_told(source)} into workdir, and read it there in place of {_told(target)}"
    )


def _copied(source: str, target: str) -> str | None:
    """Return the advice to copy the bucket with a command in `run`; None if no machine image has such a command."""
    scheme = source.partition("://")[0].lower()
    if scheme not in COPIES:
        return None
    return f"`{COPIES[scheme]} {_word(source)} {_word(target)}` into run"


def _out_of_reach(source: str) -> Unreadable:
    return Unreadable(
        f"{_told(source.partition('://')[0])}:// is not copied or mounted",
        "read it in the script, or copy it to s3:// or gs:// first",
    )


def _word(text: str) -> str:
    """
    Return `text` as a word of a shell command, in quotes if the shell needs them. Variables and `~/` stay unquoted if
    nothing else needs quotes, so that the shell expands them.
    """
    plain = text.removeprefix("~/").replace("${", "").replace("}", "").replace("$", "")
    return _told(text) if quote(plain) == plain else _told(quote(text))


def _told(text: str) -> str:
    return shown(text, 120)
