"""
What MkDocs asks of us while it builds the site (mkdocs.yml).

README.md becomes the first page, and other pages of the root join it. Pages link to files of the repository by relative
paths, as GitHub shows them. On the site, which does not hold those files, such a link becomes its text.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
_REFERENCE = re.compile(r"""(\]\(|src="|srcset=")([^)"\s]+)""")
_LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")


PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "", "SECURITY.md": "", "CHANGELOG.md": ""}
"""Pages of the repository's root, with their names on the site if these differ."""


def on_files(files: Files, config: Any) -> Files:
    for name, shown_as in PAGES.items():
        text = _REFERENCE.sub(lambda found: found[1] + _from_docs(found[2]), (ROOT / name).read_text())
        files.append(File.generated(config, shown_as or name, content=text))
    return files


def _from_docs(target: str) -> str:
    """A link of a page in the root, as a page in docs/ would write it."""
    if "://" in target or target.startswith("#") or target in PAGES:
        return PAGES.get(target) or target
    return target.removeprefix("docs/") if target.startswith("docs/") else f"../{target}"


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """
    Raises:
        FileNotFoundError: a page links to a file that the repository does not have.
    """

    def shown(link: re.Match[str]) -> str:
        text, target = link.groups()
        if "://" in target or target.startswith(("#", "mailto:")):
            return link[0]
        place = ROOT / os.path.normpath(Path("docs", page.file.src_uri).parent / target.partition("#")[0])
        if place.is_relative_to(ROOT / "docs"):
            return link[0]
        if place.parent == ROOT and place.name in PAGES:
            depth = page.file.src_uri.count("/")
            return f"[{text}]({'../' * depth}{PAGES[place.name] or place.name})"
        if not place.exists():
            raise FileNotFoundError(f"{page.file.src_uri} links to {target}, which is not there")
        return text

    return _LINK.sub(shown, markdown)
