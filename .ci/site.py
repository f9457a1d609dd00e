"""Have the site of the pages (mkdocs.yml) contain the files of the repository to which the pages link, and have lists
look as elsewhere.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

_MARKER = re.compile(r"(?:\d+\.|-) ")
#: By so many spaces Python-Markdown wants what belongs to an item of a list to be indented.
_INDENT = 4
_LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^)\s#]+)(?=[)#])")
#: Where the site has the files that are not in docs/.
_ELSEWHERE = "repository"


def _linked(path: Path) -> Path:
    """Return the file that a link to ``path`` leads to: of a folder, its README.md."""
    return path / "README.md" if path.is_dir() else path


def _links(page: Path) -> Iterator[Path]:
    for target in _LINK.findall(page.read_text("utf-8")):
        yield _linked((page.parent / target).resolve())


def _uri(path: Path, config: MkDocsConfig) -> str:
    """Return where the site has the file, from its root."""
    docs = Path(config.docs_dir)
    if path.is_relative_to(docs):
        return str(path.relative_to(docs))
    return f"{_ELSEWHERE}/{path.relative_to(docs.parent)}"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add each file outside of docs/ that a page links to, or a page that was added so."""
    docs = Path(config.docs_dir)
    pages = sorted(docs.rglob("*.md"))
    seen: set[Path] = set()
    while pages:
        for path in _links(pages.pop()):
            if path in seen or not path.is_file() or not path.is_relative_to(docs.parent):
                continue
            seen.add(path)
            if not path.is_relative_to(docs):
                files.append(File.generated(config, _uri(path, config), abs_src_path=str(path)))
                pages += [path] if path.suffix == ".md" else []
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Have each link lead to where the site has the file; one to a file that is not there stays, and is a warning."""
    here = Path(page.file.abs_src_path or "")

    def moved(found: re.Match[str]) -> str:
        path = _linked((here.parent / found[1]).resolve())
        if not path.is_file() or not path.is_relative_to(Path(config.docs_dir).parent):
            return found[1]
        return os.path.relpath(_uri(path, config), Path(page.file.src_uri).parent)

    return "\n".join(_indented(_LINK.sub(moved, markdown)))


def _indented(markdown: str) -> Iterator[str]:
    """Indent what belongs to an item of a list; the pages have it beneath the item's text, as CommonMark does."""
    width, fenced = 0, False
    for line in markdown.split("\n"):
        fenced ^= line.startswith("```")
        marker = None if fenced else _MARKER.match(line)
        if marker:
            width = len(marker[0])
        elif line and not line.startswith(" "):
            width = 0
        yield " " * (_INDENT - width) + line if width and line.startswith(" " * width) else line
