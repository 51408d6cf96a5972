"""Which files of a work folder travel with a run, beside what git itself says of the same rules."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path

import pytest

from spotrun.errors import SpecInvalid
from spotrun.folder.travelling import KEY_MARK, OWN_RULES, require_script, told, travelling
from tests.support.no_root_rights import no_root_rights

NAMES = ("a", "b", "data", "x.csv", "x.pt", "train.py", "deep", "ä b")
PATTERNS = (
    *("data/", "*.pt", "/a", "deep/*.csv", "**/b", "a/**/x.pt", "data", "x.*", "[a-b]", "\\#x", "# said", ""),
    *("deep/**", "/data/x.csv", "*.c?v", "b/", "ä b"),
)
WHITELISTS = (["*", "!*/", "!*.py"], ["/*", "!/a", "!/train.py"], ["*.pt", "!x.pt"], ["data/*", "!data/x.csv"])


def tree(top: Path, **files: str) -> Path:
    for path, text in files.items():
        target = top / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
    return top


def names(folder: Path) -> list[str]:
    return [path.relative_to(folder).as_posix() for path in travelling(folder).files]


def by_git(folder: Path) -> list[str]:
    words = ["git", "-C", str(folder), "ls-files", "-z", "-o", "--exclude-per-directory=.gitignore", "--", "."]
    told = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    return sorted(told.split("\0")[:-1])


@pytest.mark.parametrize("seed", range(12))
def test_rules_mean_what_git_takes_them_for(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    for _ in range(30):
        path = tmp_path.joinpath(*rng.choices(NAMES, k=rng.randint(1, 4)))
        if not any(parent.is_file() for parent in path.parents) and not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("")
    folders = [tmp_path, *(path for path in sorted(tmp_path.rglob("*")) if path.is_dir() and ".git" not in path.parts)]
    (tmp_path / ".gitignore").write_text(
        "\n".join(rng.choice(WHITELISTS) if seed % 3 == 0 else rng.sample(PATTERNS, 4))
    )
    (rng.choice(folders) / ".gitignore").write_text("\n".join(rng.sample(PATTERNS, 2)))
    work = rng.choice(folders)
    assert sorted(names(work)) == by_git(work)


def test_files_that_look_like_secrets_are_not_uploaded_and_are_named(tmp_path: Path) -> None:
    secret = {
        ".env": "", ".env.production": "", ".aws/credentials": "", "keys/id_ed25519": "", "server.pem": "",
        "account.json": f'{{"private_key": "{KEY_MARK.decode()}"}}',
    }  # fmt: skip
    plain = {"train.py": "", ".env.example": "", "config.json": "{}", "keys/id_ed25519.pub": "", "envs.py": ""}
    found = travelling(tree(tmp_path, **secret, **plain))
    assert sorted(path.relative_to(tmp_path).as_posix() for path in found.files) == sorted(plain)
    assert found.secrets == [".aws/", ".env", ".env.production", "account.json", "keys/id_ed25519", "server.pem"]
    assert found.ignored == []
    assert "server.pem may hold secrets." in (told(found, 6) or "")
    assert told(found) == (
        "not uploaded from the work folder: .aws/, .env, .env.production, account.json, keys/id_ed25519 and 1 more "
        "(`launch --dry-run` names all) may hold secrets. "
        "To upload a file anyway, add the line !NAME to .spotrunignore."
    )


@pytest.mark.parametrize("name", [".ENV", "keys/ID_RSA", "Server.PEM", ".Aws/Credentials"])
def test_a_secret_in_other_letters_stays_here_too(tmp_path: Path, name: str) -> None:
    assert names(tree(tmp_path, **{name: "", "Train.py": ""})) == ["Train.py"]


@pytest.mark.parametrize("kind", ["", "RSA ", "OPENSSH ", "ENCRYPTED ", "PGP "])
def test_a_private_key_stays_here_whatever_its_name(tmp_path: Path, kind: str) -> None:
    block = " BLOCK" if kind == "PGP " else ""
    key, public = (f"-----BEGIN {kind}{half} KEY{block}-----\nab\n" for half in ("PRIVATE", "PUBLIC"))
    plain = {"a.txt": public, "keys.py": f'KEY = """{key}"""'}
    found = travelling(tree(tmp_path, deploykey=key, **plain))
    assert sorted(path.name for path in found.files) == sorted(plain)
    assert found.secrets == ["deploykey"]


def test_the_own_rules_have_the_last_word(tmp_path: Path) -> None:
    tree(
        tmp_path, **{".gitignore": "data/\n*.pt\n", ".env": "", "data/small.csv": "", "data/large.bin": "", "x.pt": ""}
    )
    tree(tmp_path, **{"train.py": "", "notes.txt": ""})
    assert names(tmp_path) == [".gitignore", "notes.txt", "train.py"]
    (tmp_path / OWN_RULES).write_text("!.env\n!data/small.csv\n*.txt\n")
    assert names(tmp_path) == [".env", ".gitignore", OWN_RULES, "data/small.csv", "train.py"]


def test_rules_above_the_work_folder_hold_up_to_the_repository(tmp_path: Path) -> None:
    work = tmp_path / "outer" / "repo" / "work"
    tree(work, **{"a.csv": "", "b.csv": "", "train.py": ""})
    tree(tmp_path, **{"outer/.gitignore": "*.py\n", "outer/repo/.gitignore": "/work/a.csv\n"})
    assert names(work) == ["a.csv", "b.csv", "train.py"], "no repository"
    (work.parent / ".git").mkdir()
    assert names(work) == ["b.csv", "train.py"]


def test_a_script_that_stays_here_is_refused_with_the_line_to_write(tmp_path: Path) -> None:
    tree(tmp_path, **{".gitignore": "runs/\n", "runs/train.py": "", "main.py": ""})
    require_script(travelling(tmp_path), "main.py")
    with pytest.raises(SpecInvalid) as refused:
        require_script(travelling(tmp_path), "runs/train.py")
    assert (
        refused.value.message
        == "the script runs/train.py would not be uploaded: .gitignore or .spotrunignore excludes it"
    )
    (tmp_path / OWN_RULES).write_text("!/runs/train.py\n")
    require_script(travelling(tmp_path), "runs/train.py")
    assert "runs/train.py" in names(tmp_path)


def test_rules_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    (tmp_path / OWN_RULES).write_bytes(b"x" * (2 << 20))
    with pytest.raises(SpecInvalid, match=r"\.spotrunignore cannot be read: it is larger than"):
        travelling(tmp_path)


@pytest.mark.parametrize("name", ["closed/", "data/x.csv"])
def test_what_this_user_may_not_read_is_refused_with_the_line_that_leaves_it_out(tmp_path: Path, name: str) -> None:
    tree(tmp_path, **{"train.py": "", "closed/runs/a": "", "data/x.csv": ""})
    (tmp_path / name).chmod(0)
    with no_root_rights():
        with pytest.raises(SpecInvalid, match=f"{tmp_path / name} cannot be read by this user") as refused:
            names(tmp_path)
        assert f"add the line /{name} to {OWN_RULES}" in str(refused.value.hint)
        tree(tmp_path, **{OWN_RULES: f"/{name}\n!train.py\n"})
        assert "train.py" in names(tmp_path)
    (tmp_path / name).chmod(0o700)
