"""Shows work in progress: one screen that is redrawn on a terminal, plain lines elsewhere."""

from __future__ import annotations

from abc import abstractmethod
from contextlib import AbstractContextManager
from typing import Generic, Self, TypeVar

from rich.console import Console, RenderableType
from rich.live import Live

Update = TypeVar("Update")


class View(AbstractContextManager["View[Update]"], Generic[Update]):
    """Shows updates of some work. Enter it before the work begins, and leave it afterwards."""

    @abstractmethod
    def show(self, update: Update) -> None: ...

    def __exit__(self, *_: object) -> None:
        return


class Screen(View[Update]):
    """A view that redraws one screen. If `transient`, its exit clears the screen."""

    def __init__(self, console: Console, *, refresh_per_second: float, transient: bool) -> None:
        self._console = console
        self._live = Live(console=console, refresh_per_second=refresh_per_second, transient=transient)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    @property
    def width(self) -> int:
        """The columns of the terminal, which may change at any time."""
        return self._console.width

    @property
    def height(self) -> int:
        """The lines of the terminal, which may change at any time; lines beyond them are not shown."""
        return self._console.height

    def show(self, update: Update) -> None:
        self._live.update(self.render(update))

    @abstractmethod
    def render(self, update: Update) -> RenderableType: ...
