"""Runs with the secret WORD, wherever that is kept. The keys `where` of their jobs say on which cloud they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from spotrun.agent.logs.output_redaction import forms_of_all
from spotrun.run import events as ev
from tests.support.agent_bench import AgentRun

_SHOWS = (
    'echo "it is $WORD"; env | grep ^WORD; '
    "python -c \"import base64, os; print(base64.b64encode(os.environ['WORD'].encode()).decode())\"; "
    'echo "and $WORD" >&2; exit 3'
)


def require_that_only_the_trainer_has_it(folder: Path, value: str, **where: Any) -> None:
    """A script that shows it in several ways. It has the value already."""
    seen = folder / "seen"
    run = AgentRun(
        folder,
        setup='echo "setup has ${WORD:-nothing}"',
        train={"run": f'printf %s "$WORD" > {seen}; {_SHOWS}'},
        retry={"max_restarts": 0},
        secrets=["WORD"],
        **where,
    )
    try:
        node = run.launch()
        node.powers_off()
        stars = "*" * len(value.encode())
        assert seen.read_text() == value
        assert "setup has nothing" in run.log(node)
        assert run.log(node).count(stars) == 4
        assert run.wait_for(ev.TrainerExited).detail.startswith(f"and {stars}")
        forms = [form.encode() for form in forms_of_all([value])]
        for place in (Path(run.store.uri), node.folder / "console.log", node.folder / "training.log"):
            for path in [place] if place.is_file() else [path for path in place.rglob("*") if path.is_file()]:
                assert [form for form in forms if form in path.read_bytes()] == []
    finally:
        run.close()


def require_that_a_missing_one_ends_the_run(folder: Path, words: str, **where: Any) -> None:
    """Before `setup` runs. The reason has these words."""
    run = AgentRun(folder, setup="touch set-up", secrets=["WORD"], **where)
    try:
        node = run.launch()
        node.powers_off()
        ended = run.wait_for(ev.AttemptEnded)
        assert ended.cause is ev.Cause.USER_ERROR
        assert words in ended.detail
        assert not (node.folder / "work/set-up").exists()
    finally:
        run.close()
