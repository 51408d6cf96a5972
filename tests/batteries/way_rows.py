"""The table of docs/exactness-measured.md about kinds of scripts: a row for each of tests/batteries/of_ways."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from spotrun.units import count_of
from tests.support.repository import ROOT

SCRIPTS = ROOT / "tests" / "batteries" / "of_ways"
PAGE = ROOT / "docs" / "exactness-measured.md"
BEGIN, END = "<!-- table: make battery NAME=ways -->", "<!-- end of the table of ways -->"
HEAD = (
    "| script | started as | steps | killed | steps done twice, with a notice | and without | verdict |\n"
    "|---|---|---|---|---|---|---|\n"
)
TRAINER, AGENT, INSTANCE, NOTICE = "trainer", "agent", "instance", "notice"
VICTIMS = {
    TRAINER: "the trainer",
    AGENT: "its agent",
    INSTANCE: "the instance without a word",
    NOTICE: "the instance with a notice",
}


class Way(NamedTuple):
    """
    What it is in the manner of, and `train` of its job. Its folder has its name. With `short_imports` it starts without
    the parts of torch and scipy that Lightning loads and it does not use.
    """

    kind: str
    train: dict[str, Any]
    short_imports: bool = False

    @property
    def command(self) -> str:
        return " ".join(["python", self.train["script"], *self.train.get("args", ())])


WAYS: Mapping[str, Way] = {
    "nano_gpt": Way("nanoGPT", {"script": "train.py", "args": ["--max_iters=48", "--dropout=0.2"]}),
    "run_clm": Way("`run_clm` of transformers", {"script": "run_clm.py", "args": ["train.json"]}),
    "timm_train": Way("`train.py` of timm", {"script": "train.py", "args": ["-c", "args.yaml", "--smoothing", "0.05"]}),
    "fabric": Way("repositories on Fabric", {"script": "train.py"}, True),
    "lightning_cli": Way("LightningCLI", {"script": "main.py", "args": ["fit", "--config", "config.yaml"]}, True),
    "hydra": Way("Lightning with Hydra", {"script": "train.py", "args": ["model=wide", "trainer.max_epochs=4"]}, True),
}


class Kill(msgspec.Struct, frozen=True):
    """Of a key of VICTIMS, and how many steps were done again after it."""

    victim: str
    redone: int


class Seen(msgspec.Struct, frozen=True):
    """What was measured of the files with that digest. `wrong` differs from a training in peace; "" if nothing does."""

    sha256: str
    steps: int = 0
    files: int = 0
    tensors: int = 0
    kills: tuple[Kill, ...] = ()
    wrong: str = ""

    def left(self, each: int) -> Counter[str]:
        """How often each has to be killed yet, if `each` is how often it has to be in all; an instance in two ways."""
        wanted = {TRAINER: each, AGENT: each, INSTANCE: each - each // 2, NOTICE: each // 2}
        return Counter(wanted) - Counter(kill.victim for kill in self.kills)


def unseen(name: str) -> Seen:
    digest = hashlib.sha256(repr(WAYS[name]).encode())
    for path in sorted((SCRIPTS / name).rglob("*")):
        if path.is_file() and path.suffix != ".pyc":
            digest.update(path.relative_to(SCRIPTS).as_posix().encode() + b"\0" + path.read_bytes())
    return Seen(digest.hexdigest())


def known(folder: Path) -> dict[str, Seen]:
    """What is known of the scripts as they are now."""
    return {name: _known_of(name, folder / f"{name}.json") for name in WAYS}


def _known_of(name: str, path: Path) -> Seen:
    new = unseen(name)
    kept = msgspec.json.decode(path.read_bytes(), type=Seen) if path.exists() else new
    return kept if kept.sha256 == new.sha256 else new


def keep(folder: Path, name: str, seen: Seen) -> None:
    """In a file of its own, so that several can be measured at once."""
    folder.mkdir(parents=True, exist_ok=True)
    new = folder / f"{name}.new"
    new.write_bytes(msgspec.json.format(msgspec.json.encode(seen)))
    new.replace(folder / f"{name}.json")


def row(name: str, seen: Seen) -> str:
    way = WAYS[name]
    about = f"[{name}](../tests/batteries/of_ways/{name}), in the manner of {way.kind}"
    counts = Counter(kill.victim for kill in seen.kills)
    killed = ", ".join(f"{words} {counts[victim]}" for victim, words in VICTIMS.items() if counts[victim])
    noticed = [kill.redone for kill in seen.kills if kill.victim == NOTICE]
    others = [kill.redone for kill in seen.kills if kill.victim != NOTICE]
    cells = [about, f"`{way.command}`", str(seen.steps or ""), killed, steps(noticed), steps(others), verdict(seen)]
    return "| " + " | ".join(cells) + " |\n"


def steps(redone: Sequence[int]) -> str:
    return f"{sum(redone)}, at most {max(redone)} for one kill" if redone else ""


def verdict(seen: Seen) -> str:
    if not seen.kills:
        return "not measured yet"
    if seen.wrong:
        return f"**differs**: {' '.join(seen.wrong.split())[:300]}".replace("|", "\\|").replace("<", "&lt;")
    return f"the same bits: {count_of(seen.files, 'file')}, {count_of(seen.tensors, 'tensor')} of the last checkpoint"


def with_rows(page: str, results: Mapping[str, Seen]) -> str:
    head, _, rest = page.partition(BEGIN)
    assert rest, f"{PAGE} has no place for the table"
    rows = "".join(row(name, results[name]) for name in WAYS)
    return f"{head}{BEGIN}\n\n{HEAD}{rows}\n{END}{rest.partition(END)[2]}"
