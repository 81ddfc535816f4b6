"""Every relative link of every document leads to a file that there is, and to a heading in it."""

from __future__ import annotations

import functools
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted(
    [*ROOT.glob("*.md"), *(path for room in ("docs", "examples", "tests") for path in (ROOT / room).rglob("*.md"))]
)
_LINK = re.compile(r"\]\((?!https?:)([^)\s]+)\)")
_CODE = re.compile(r"^```.*?^```|`[^`]*`", re.DOTALL | re.MULTILINE)


@functools.cache
def anchors(document: Path) -> frozenset[str]:
    """The headings of a document, as their links are written."""
    text = re.sub(r"^```.*?^```", "", document.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return frozenset(re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(document: Path) -> None:
    missing = []
    for link in _LINK.findall(_CODE.sub("", document.read_text(encoding="utf-8"))):
        file, _, anchor = link.partition("#")
        target = (document.parent / file).resolve() if file else document
        if not target.exists() or (anchor and anchor not in anchors(target)):
            missing.append(link)
    assert missing == []


def test_every_document_of_the_library_is_found_from_the_readme() -> None:
    """Directly or by the documents that it names."""
    found, ahead = set(), [ROOT / "README.md"]
    while ahead:
        document = ahead.pop()
        if document in found:
            continue
        found.add(document)
        links = (link.partition("#")[0] for link in _LINK.findall(document.read_text(encoding="utf-8")))
        ahead += [(document.parent / link).resolve() for link in links if link.endswith(".md")]
    assert [path for path in DOCUMENTS if path.parent == ROOT / "docs" and path not in found] == []
