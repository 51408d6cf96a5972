"""
Chooses which files of the user's work folder are uploaded with a run. These files *travel* with the run.

All instances can read these files, and so can everyone who is allowed to read the run's folder in the store. So files
that look like secrets are not uploaded, and neither are files that match the user's `.gitignore` files. The file
`.spotrunignore` at the top of the work folder overrides both. It has the syntax of `.gitignore`: the line `data/`
leaves out that folder, and `!.env` includes that file.
"""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from pathspec import GitIgnoreSpec

from spotrun.errors import SpecInvalid
from spotrun.folder.paths import NEVER

OWN_RULES = ".spotrunignore"
GIT_RULES = ".gitignore"
RULES_MAX_BYTES = 1 << 20
NAMED_MAX = 5

SECRETS = GitIgnoreSpec.from_lines(
    [
        *(".env", ".env.*", "!.env.example", "!.env.sample", "!.env.template", "!.env.dist", ".envrc"),
        *(".aws/", ".azure/", ".config/gcloud/", ".docker/", ".gnupg/", ".kaggle/", ".kube/", ".oci/", ".ssh/"),
        *(".boto", ".git-credentials", ".netrc", "_netrc", ".npmrc", ".pgpass", ".pypirc", ".s3cfg", ".vault-token"),
        *("id_rsa", "id_dsa", "id_ecdsa", "id_ed25519", "*.pem", "*.key", "*.p12", "*.pfx", "*.jks", "*.kdbx"),
        *("kaggle.json", "application_default_credentials.json", "client_secret*.json", ".streamlit/secrets.toml"),
        *("*.tfstate", "*.tfvars", ".bash_history", ".python_history", ".zsh_history"),
    ]
)
"""Names of files and folders in which programs keep keys, passwords and tokens."""
KEY_FILE_MAX_BYTES = 1 << 16
KEY_MARK = b"-----BEGIN PRIVATE KEY-----"
"""Text that the JSON key file of a Google Cloud service account contains."""
_KEY_BEGINS = re.compile(rb"\s*-----BEGIN (?:[A-Z]+ )*PRIVATE KEY(?: BLOCK)?-----")
"""The beginning of a private key file in PEM (RFC 7468), OpenSSH or PGP format."""
_BEGINNING_BYTES = 128


class UploadSelection(NamedTuple):
    """
    The files of a work folder. `files` travel with the run. The other two fields list the paths that do not travel:
    `secrets` are the paths that look like secrets, and `ignored` are the paths that match a rule in a `.gitignore` or
    `.spotrunignore` file. In these lists, a folder's path ends with a slash.
    """

    files: list[Path]
    secrets: list[str]
    ignored: list[str]


def travelling(folder: Path, runs: str = "") -> UploadSelection:
    """
    Return which files travel with a run. Links and special files do not travel, and are not listed. `runs` is the
    address of the store of runs. If that store is inside the work folder, its files do not travel either: they contain
    keys, and they change all the time.

    Raises:
        SpecInvalid: a file of rules, or a file or folder that travels, cannot be read.
    """
    own = _rules(folder / OWN_RULES)
    above = [(parent, rules) for parent in _up_to_repository(folder) if (rules := _rules(parent / GIT_RULES))]
    found = UploadSelection([], [], [])
    _look(folder, folder, own, above, found, Path(runs.removeprefix("file://")))
    return found


def to_upload(folder: Path, runs: str, script: str | None, max_gb: float) -> UploadSelection:
    """
    Return which files travel with a run, as `travelling` does, if the run can be launched with them. `script` is the
    path of the job's script in the folder, if it has one.

    Raises:
        SpecInvalid: the script does not travel, the files have more than `max_gb` GB, or a file of rules, or a file or
            folder that travels, cannot be read.
    """
    found = travelling(folder, runs)
    if script is not None:
        require_script(found, script)
    _require_size(found, folder, max_gb)
    return found


def _require_size(found: UploadSelection, folder: Path, max_gb: float) -> None:
    sizes = Counter[str]()
    for path in found.files:
        sizes[path.relative_to(folder).parts[0]] += path.stat().st_size
    if sizes.total() <= max_gb * 1e9:
        return
    name, size_bytes = sizes.most_common(1)[0]
    largest = f"{name}/" if (folder / name).is_dir() else name
    raise SpecInvalid(
        f"the work folder {folder} has {_mb(sizes.total())} to upload, of which {largest} has {_mb(size_bytes)}; "
        f"at most {_mb(max_gb * 1e9)} can be uploaded with a run",
        hint=f"have the script read its data from a bucket, and add the line /{largest} to {OWN_RULES}; or write "
        f"workdir_max_gb: {math.ceil(sizes.total() / 1e8) / 10:g}",
        key=("workdir",),
    )


def _mb(size_bytes: float) -> str:
    return f"{size_bytes / 1e6:,.0f} MB"


def require_script(found: UploadSelection, script: str) -> None:
    """
    Check that the job's script travels with the run. `script` is the script's path in the folder.

    Raises:
        SpecInvalid: the script does not travel.
    """
    reasons = {"it looks like a secret": found.secrets, f"{GIT_RULES} or {OWN_RULES} excludes it": found.ignored}
    for why, names in reasons.items():
        if any(script == name or (name.endswith("/") and script.startswith(name)) for name in names):
            raise SpecInvalid(
                f"the script {script} would not be uploaded: {why}",
                hint=f"add the line !/{script} to {OWN_RULES} in the work folder",
                key=("train", "script"),
            )


def told(found: UploadSelection, named: int = NAMED_MAX) -> str | None:
    """
    Return a note for the user about the files that do not travel; None if all files travel. The note names up to
    `named` secrets and up to `named` ignored files.
    """
    if not found.secrets and not found.ignored:
        return None
    said = []
    if found.secrets:
        said.append(f"{_few(found.secrets, named)} may hold secrets")
    if found.ignored:
        said.append(f"{GIT_RULES} or {OWN_RULES} names {_few(found.ignored, named)}")
    return (
        f"not uploaded from the work folder: {'; '.join(said)}. "
        f"To upload a file anyway, add the line !NAME to {OWN_RULES}."
    )


def _few(names: Sequence[str], named: int) -> str:
    more = len(names) - named
    return ", ".join(names[:named]) + (f" and {more} more (`launch --dry-run` names all)" if more > 0 else "")


def _up_to_repository(folder: Path) -> list[Path]:
    """
    Return the parent folders whose `.gitignore` files also apply to a work folder: those up to the top of its Git
    repository, topmost first.
    """
    if (folder / ".git").exists():
        return []
    above: list[Path] = []
    for parent in folder.resolve().parents:
        above.insert(0, parent)
        if (parent / ".git").exists():
            return above
    return []


def _look(
    top: Path,
    folder: Path,
    own: GitIgnoreSpec | None,
    above: Sequence[tuple[Path, GitIgnoreSpec]],
    found: UploadSelection,
    runs: Path,
) -> None:
    rules = _rules(folder / GIT_RULES)
    git = [*above, (folder, rules)] if rules is not None else above
    for path in sorted(folder.iterdir()):
        if path.name in NEVER or path.is_symlink() or path == runs:
            continue
        name = path.relative_to(top).as_posix()
        if path.is_dir():
            left_out, can_enter = _judge(path, f"{name}/", own, git), _may(path, os.R_OK | os.X_OK)
            if left_out is None and not can_enter:
                raise _closed(path, f"{name}/")
            if left_out is None or (can_enter and _may_take_along(own, git)):
                _look(top, path, own, git, found, runs)
            else:
                getattr(found, left_out).append(f"{name}/")
        elif path.is_file():
            left_out = _judge(path, name, own, git)
            if left_out is None and not _may(path, os.R_OK):
                raise _closed(path, name)
            (found.files.append(path) if left_out is None else getattr(found, left_out).append(name))


def _may(path: Path, mode: int) -> bool:
    return os.access(path, mode, effective_ids=True)


def _closed(path: Path, name: str) -> SpecInvalid:
    hint = f"add the line /{name} to {OWN_RULES} in the work folder, so that it is not uploaded"
    return SpecInvalid(f"{path} cannot be read by this user", hint=hint, key=("workdir",))


def _judge(path: Path, name: str, own: GitIgnoreSpec | None, git: Sequence[tuple[Path, GitIgnoreSpec]]) -> str | None:
    """
    Return the name of the list in `UploadSelection` to which a path belongs; None if the path travels. The first rule
    that applies decides: first the rules in `.spotrunignore`, then those about secrets, then those in the `.gitignore`
    files, the deepest folder first.
    """
    if own is not None and (decided := own.check_file(name).include) is not None:
        return "ignored" if decided else None
    if SECRETS.check_file(name.lower()).include or (path.is_file() and _holds_key(path)):
        return "secrets"
    slash = "/" if name.endswith("/") else ""
    for folder, rules in reversed(git):
        below = path if folder in path.parents else path.resolve()
        decided = rules.check_file(below.relative_to(folder).as_posix() + slash).include
        if decided is not None:
            return "ignored" if decided else None
    return None


def _may_take_along(own: GitIgnoreSpec | None, git: Sequence[tuple[Path, GitIgnoreSpec]]) -> bool:
    """
    Return True if any rule begins with `!`. If so, folders that other rules leave out have to be searched too, because
    a rule with `!` may include a file in them.
    """
    return any(
        pattern.include is False for rules in (own, *(each for _, each in git)) if rules for pattern in rules.patterns
    )


def _holds_key(path: Path) -> bool:
    in_json = path.suffix.lower() == ".json"
    try:
        with path.open("rb") as file:
            data = file.read(KEY_FILE_MAX_BYTES + 1 if in_json else _BEGINNING_BYTES)
    except OSError:
        return False
    return bool(_KEY_BEGINS.match(data)) or (in_json and len(data) <= KEY_FILE_MAX_BYTES and KEY_MARK in data)


def _rules(path: Path) -> GitIgnoreSpec | None:
    if not path.is_file():
        return None
    try:
        if path.stat().st_size > RULES_MAX_BYTES:
            raise ValueError(f"it is larger than {RULES_MAX_BYTES} bytes")
        return GitIgnoreSpec.from_lines(list(_lines(path)))
    except (OSError, ValueError) as problem:
        raise SpecInvalid(f"{path} cannot be read: {problem}", hint="correct the file, or remove it") from None


def _lines(path: Path) -> Iterator[str]:
    text = path.read_bytes().decode(errors="surrogateescape")
    yield from text.removeprefix("\ufeff").split("\n")
