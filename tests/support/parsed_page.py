"""An HTML report, parsed."""

from __future__ import annotations

from html.parser import HTMLParser

VOID = {"meta"}


class Page(HTMLParser):
    """The parsed page; each tag that opens must be closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.rows: list[list[dict[str, str | None]]] = []
        self.cells: list[list[str]] = []
        self.texts: dict[str, list[str]] = {}
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
            self.cells.append([])
        if tag in ("th", "td"):
            self.rows[-1].append(dict(attrs))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open:
            self.texts.setdefault(self.open[-1], []).append(data)
        if self.open and self.open[-1] in ("th", "td"):
            self.cells[-1].append(data)
