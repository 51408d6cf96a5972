"""
What MkDocs asks of us while it builds the site (mkdocs.yml).

README.md becomes the first page. Pages link to files of the repository by relative paths, as GitHub shows them; on
the site, which does not hold those files, such a link becomes its text.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
_LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")


def on_files(files: Files, config: Any) -> Files:
    readme = (ROOT / "README.md").read_text().replace("docs/", "").replace("](infra/", "](../infra/")
    files.append(
        File.generated(config, "index.md", content=re.sub(r"\]\((examples|tests|spotrun)/", r"](../\1/", readme))
    )
    return files


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
        if not place.exists():
            raise FileNotFoundError(f"{page.file.src_uri} links to {target}, which is not there")
        return text

    return _LINK.sub(shown, markdown)
