"""The arguments that benchmarks take."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import fold, stall


@pytest.mark.parametrize(
    ("count", "reason"), [("0", "at least 1,000, not 0"), ("-5", "not -5"), ("many", "invalid count value: 'many'")]
)
def test_a_count_that_cannot_be_is_refused(
    count: str, reason: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["fold", "--entries", count])
    with pytest.raises(SystemExit) as ended:
        fold.main()
    assert ended.value.code == 2
    assert reason in capsys.readouterr().err


def test_a_folder_that_is_no_checkout_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["stall", "--against", str(tmp_path)])
    with pytest.raises(SystemExit) as ended:
        stall.main()
    assert ended.value.code == 2
    assert f"{tmp_path} has no folder spotrun/" in capsys.readouterr().err
