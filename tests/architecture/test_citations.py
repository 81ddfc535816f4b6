"""What is cited exists: sections of the specification, places in papers, papers, standards.

``docs/references.md`` says how citations read and which places a paper has; ``docs/specification.md`` is SPEC. Code,
tests, examples and documents are searched as they stand, comments and docstrings included.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from uvsdk.federation import algorithms

ROOT = Path(__file__).resolve().parents[2]
SPECIFICATION = (ROOT / "docs/specification.md").read_text(encoding="utf-8")
REFERENCES = (ROOT / "docs/references.md").read_text(encoding="utf-8")
FOLDERS = ("uvsdk", "server", "device", "tests", "examples", "docs")

_NUMBER = r"(?:[IVX]+(?:-[A-G])?|A\.\d|\d+(?:\.\d+)*)\b"
_NUMBERS = rf"{_NUMBER}(?:(?:, | and |-){_NUMBER})*"
_KIND = r"(?:Eq|Alg|Table|Fig|Prop|Lemma|Theorem|Claim|Definition|Remark|section)"
_PLACE = rf"{_KIND}s? {_NUMBERS}(?: lines? {_NUMBERS})?|A\.\d\b"
_CITED = re.compile(rf"\b(S\d|UV) ((?:{_PLACE})(?:,? (?:and )?(?:{_PLACE}))*)")
_BARE = re.compile(
    rf"\b(?:Eq|Equation|Alg|Algorithm|Table|Fig|Figure|Prop|Proposition|Lemma|Theorem|Claim)s? {_NUMBERS}"
    rf"(?: lines? {_NUMBERS})?"
)
_WORDS = {"Equation": "Eq", "Algorithm": "Alg", "Figure": "Fig", "Proposition": "Prop"}
_SPEC_PLACE = r"(?:Appendix [A-Z]|\d+(?:\.\d+)?)"
_SPEC = re.compile(rf"\bSPEC\b(?: ({_SPEC_PLACE}(?:(?:, | and |-){_SPEC_PLACE})*))?")
_NAME = r"[^\W\d_][\w’'-]*"
_MORE = rf"(?: et al\.|(?:, {_NAME})*,? (?:and|&) (?:(?:de|du|van) )?{_NAME})"
_TITLE = r',? "[^"]{3,170}",?'
_VENUE = r"(?: (?:ICASSP|CVPR))?"
_PAPER = re.compile(
    rf"\b(?P<name>(?=[A-Z]){_NAME})(?:{_MORE}(?:{_TITLE})?,?{_VENUE} \(?|{_TITLE} \(?| \()(?P<year>(?:19|20)\d\d)\b"
)
_ET_AL = re.compile(rf"\b({_NAME}) et al\b")
_PLACE_OF_ANOTHER = re.compile(rf"\b{_NAME} et al\. \d{{4}}, (?:{_PLACE})")
_STANDARD = re.compile(
    r"\b(RFC \d+|NIST SP \d+-\w+(?:-\d)?|FIPS \d+(?:-\d)?|ISO/IEC \d+(?:-\d+)?|ITU-[TR] [A-Z]+\.\d+|IEEE \d+|"
    r"EBU Tech \d+|OWASP ASVS \d)(?::(\d{4}))?"
)
_OPENING = re.compile(
    r".+\.\n\n(?P<title>.+)\n  (?P<authors>.+)\. (?P<venue>.+ \d{4}) \((?P<key>[^)]+)\)\.\n  (?P<address>https://\S+)\n"
)
_ADDRESS = re.compile(r"https?://(?:arxiv\.org/abs|doi\.org|www\.rfc-editor\.org/rfc)/[^\s)>\"'|;]+")


def unwrapped(text: str) -> str:
    """``text`` without line breaks and comment signs, so that a citation may run over the end of a line."""
    return re.sub(r"\s*\n\s*(?:#:? )?", " ", text)


def files() -> Iterator[Path]:
    """Every text of the project in which something can be cited; not this one, which is about the forms."""
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in {".py", ".md", ".html", ".js", ".ts"} and path != Path(__file__).resolve():
                yield path
    yield from sorted(ROOT.glob("*.md"))


TEXTS = {path.relative_to(ROOT).as_posix(): unwrapped(path.read_text(encoding="utf-8")) for path in files()}


def listed(numbers: str) -> list[str]:
    """``"4-6, 8"`` as 4, 5, 6, 8; a range of anything but whole numbers as its two ends."""
    found: list[str] = []
    for part in re.split(r", | and ", numbers):
        ends = re.fullmatch(r"(\d+)-(\d+)", part)
        if ends:
            found.extend(str(number) for number in range(int(ends[1]), int(ends[2]) + 1))
        elif re.fullmatch(rf"{_SPEC_PLACE}-{_SPEC_PLACE}", part):
            found.extend(part.split("-"))
        else:
            found.append(part)
    return found


def places_in(text: str) -> list[tuple[str, str, str]]:
    """(kind, number, line) of ``"Alg 1 line 12 and Eq 4-6"``; line is empty where none is named."""
    found = []
    for kind, numbers, lines in re.findall(rf"\b([A-Za-z]+) ({_NUMBERS})(?: lines? ({_NUMBERS}))?", text):
        name = kind.removesuffix("s")
        for number in listed(numbers):
            found.extend((_WORDS.get(name, name), number, line) for line in (listed(lines) if lines else [""]))
    found.extend(("section", number, "") for number in re.findall(r"(?<!section )\bA\.\d\b", text))
    return found


def papers() -> dict[str, dict[str, dict[str, int]]]:
    """Key -> kind -> number -> how many lines it has, 0 where that is not said."""
    found: dict[str, dict[str, dict[str, int]]] = {}
    for key, body in re.findall(r"^### (S\d|UV|SA\+?)\n(.*?)(?=^##)", REFERENCES, re.MULTILINE | re.DOTALL):
        kinds: dict[str, dict[str, int]] = {}
        places = re.search(r"^Places[^:]*: (.*?)\n\n", body + "\n", re.MULTILINE | re.DOTALL)
        for part in unwrapped(places[1]).split("; ") if places else []:
            kind, rest = part.split(" ", 1)
            of_kind = kinds.setdefault(kind, {})
            for item in rest.strip().split(", "):
                numbers, lines = re.fullmatch(r"(\S+)(?: \((\d+) lines\))?", item).groups()  # type: ignore[union-attr]
                of_kind.update(dict.fromkeys(listed(numbers), int(lines or 0)))
        found[key] = kinds
    return found


PAPERS = papers()


def authors() -> set[tuple[str, str]]:
    """(first author's surname, year) of every paper in the references."""
    found = {(row[0], row[1]) for row in re.findall(r"^\| (\w+) (\d{4}) \|", REFERENCES, re.MULTILINE)}
    surnames = {"S0": ("Yu", "2020"), "S2": ("An", "2024"), "S3": ("Park", "2021"), "S4": ("Waghmare", "2022")}
    return found | set(surnames.values()) | {("Hosseini", "2021"), ("Bonawitz", "2017"), ("Bell", "2020")}


AUTHORS = authors()
STANDARDS = dict(re.findall(r"^\| ([A-Z].*?) \| (.*?) \|", REFERENCES.split("\n## Standards\n")[1], re.MULTILINE))


def headings() -> set[str]:
    """What SPEC n, SPEC n.m and SPEC Appendix X name: headings, and the numbered items of sections without any."""
    found = set(re.findall(r"^## (\d+|Appendix [A-Z])\. ", SPECIFICATION, re.MULTILINE))
    found |= set(re.findall(r"^### (\d+\.\d+) ", SPECIFICATION, re.MULTILINE))
    for number, body in re.findall(r"^## (\d+)\. .*?\n(.*?)(?=^## |\Z)", SPECIFICATION, re.MULTILINE | re.DOTALL):
        items = re.findall(r"^(\d+)\. ", body, re.MULTILINE)
        if len(items) == len(set(items)) and not re.search(r"^### ", body, re.MULTILINE):
            found |= {f"{number}.{item}" for item in items}
    return found


HEADINGS = headings()


def chunks() -> Iterator[tuple[str, str, str]]:
    """(name, text, the key of the paper that a place without a key is in, empty where it needs one)."""
    for name, text in TEXTS.items():
        folder = re.match(r"examples/reproduce/\w+/", name)
        if name == "docs/specification.md":
            for section in re.split(r"(?m)^(?=## |\*\*(?:S\d|UV)\*\*$)", SPECIFICATION):
                key = re.match(r"## \d+\. .*\((S\d|UV)\)\n|\*\*(S\d|UV)\*\*\n", section)
                yield name, unwrapped(section), (key[1] or key[2]) if key else ""
        elif name == "docs/references.md":
            yield name, re.sub(r"Places.*?(?=###|## )", "", text), ""
        elif folder:
            first = re.search(r"\((S\d|UV)\b", TEXTS.get(f"{folder[0]}README.md", ""))
            yield name, text, first[1] if first else ""
        else:
            yield name, text, ""


def missing(key: str, text: str) -> list[str]:
    """The places that ``text`` names and paper ``key`` does not have."""
    known = PAPERS.get(key, {})
    return [
        f"{key} {kind} {number}" + (f" line {line}" if line else "")
        for kind, number, line in places_in(text)
        if number not in known.get(kind, {}) or (line and int(line) > known[kind][number])
    ]


def test_the_references_and_the_specification_are_read() -> None:
    assert set(PAPERS) == {"S0", "S1", "S2", "S3", "S4", "UV", "SA", "SA+"}
    assert PAPERS["S0"]["Alg"] == {"1": 16}
    assert set(PAPERS["S2"]["Table"]) == {"I", "II", "III", "IV", "V", "VI", "VII"}
    assert "A.2" in PAPERS["S4"]["section"]
    assert {str(number) for number in range(18)} | {"Appendix A", "Appendix B", "Appendix C"} <= HEADINGS
    assert {"2.2", "11.4", "13.6"} <= HEADINGS
    assert len(AUTHORS) > 60
    assert len(STANDARDS) > 25


def test_every_section_that_is_cited_exists() -> None:
    found = [(name, match[0], match[1]) for name, text in TEXTS.items() for match in _SPEC.finditer(text)]
    assert len(found) > 120
    unresolved = [
        f"{name}: {citation}"
        for name, citation, numbers in found
        if numbers is None or not HEADINGS.issuperset(listed(numbers))
    ]
    assert unresolved == [], "write SPEC n.m, SPEC 3.6, 11.4, or SPEC Appendix B"


def test_the_specification_refers_to_sections_that_it_has() -> None:
    named = re.findall(r"§(\d+(?:\.\d+)?)", SPECIFICATION) + re.findall(r"(Appendix [A-Z])\b", SPECIFICATION)
    assert len(named) > 30
    assert [number for number in named if number not in HEADINGS] == []
    links = re.findall(r"\]\(([^)#]+)\)", SPECIFICATION + REFERENCES)
    assert [link for link in links if not (ROOT / "docs" / link).is_file()] == []


def test_every_place_that_is_cited_is_in_its_paper() -> None:
    found = [(name, *match.groups()) for name, text, _ in chunks() for match in _CITED.finditer(text)]
    assert len(found) > 60
    assert [(name, lost) for name, key, places in found if (lost := missing(key, places))] == []


def test_a_place_without_a_paper_is_in_the_one_that_its_text_is_about() -> None:
    lost = []
    for name, text, key in chunks():
        for match in _BARE.finditer(_PLACE_OF_ANOTHER.sub("", _CITED.sub("", text))):
            if not key or missing(key, match[0]):
                lost.append((name, match[0], key or "say whose: S0 Eq 7"))
    assert lost == []


def test_every_paper_that_is_cited_is_listed() -> None:
    found = [(name, *match.group("name", "year")) for name, text in TEXTS.items() for match in _PAPER.finditer(text)]
    assert len(found) > 40
    assert [(name, who, year) for name, who, year in found if (who.removesuffix("'s"), year) not in AUTHORS] == []
    surnames = {surname for surname, _ in AUTHORS}
    assert [(name, who) for name, text in TEXTS.items() for who in _ET_AL.findall(text) if who not in surnames] == []


def test_every_standard_that_is_cited_is_listed() -> None:
    found = [(name, *match.groups()) for name, text in TEXTS.items() for match in _STANDARD.finditer(text)]
    assert len(found) > 50
    lost = [
        (name, standard, year)
        for name, standard, year in found
        if standard not in STANDARDS or (year and year not in STANDARDS[standard])
    ]
    assert lost == []


def test_every_address_of_a_paper_or_standard_is_the_listed_one() -> None:
    found = {(name, address.rstrip(".,")) for name, text in TEXTS.items() for address in _ADDRESS.findall(text)}
    known = {address.rstrip(".,") for address in _ADDRESS.findall(REFERENCES)}
    assert sorted((name, address) for name, address in found if address not in known) == []


@pytest.mark.parametrize("name", algorithms.names())
def test_an_algorithm_opens_with_its_paper(name: str) -> None:
    """Title, authors, venue, year, key and address, as the references have them; or that there is no paper."""
    text = importlib.import_module(f"uvsdk.federation.algorithms.{name}").__doc__ or ""
    opening = _OPENING.match(text)
    assert opening or "Not from a paper." in text, f"{name}/__init__.py opens with its paper, or: Not from a paper."
    if opening:
        entry = unwrapped(REFERENCES.split(f"\n### {opening['key']}\n")[1].split("\n### ")[0])
        assert f" {opening['title']}. {opening['authors']}. {opening['venue']}" in entry
        assert f" {opening['address']} " in entry


@pytest.mark.parametrize(
    ("text", "lost"),
    [
        ("S0 Eq 7", []),
        ("S0 Alg 1 line 13", []),
        ("S0 Alg 1 line 17", ["S0 Alg 1 line 17"]),
        ("S2 Eq 8, 10 and 16", ["S2 Eq 16"]),
        ("S3 Eqs 4-6", []),
        ("S2 section V-B", []),
        ("S3 section 4.1, 4.9", ["S3 section 4.9"]),
        ("S4 A.2", []),
        ("S4 A.7", ["S4 section A.7"]),
        ("S2 Table VIII", ["S2 Table VIII"]),
    ],
)
def test_what_does_not_exist_is_found(text: str, lost: list[str]) -> None:
    match = _CITED.fullmatch(text)
    assert match
    assert missing(match[1], match[2]) == lost
