"""What the trainings of this room have in common."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.called_spotrun import spotrun as spotrun
from tests.support.trainings.trainers import Zygote


@pytest.fixture(scope="session")
def zygote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zygote]:
    """One for all files: what it imports takes four seconds, and no test changes it."""
    zygote = Zygote(tmp_path_factory.mktemp("zygote"))
    yield zygote
    zygote.close()
