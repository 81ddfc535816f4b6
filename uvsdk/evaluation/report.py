"""One HTML page from data: it names no other file and no address, works offline, and reads on a phone or on paper.

Every text is escaped; the plots are SVG made by :mod:`uvsdk.evaluation.plots` and follow the page's light or dark
colours.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from html import escape
from importlib.metadata import PackageNotFoundError, version

GRID_VARIABLE = "var(--grid)"
_INK, _GRID = "#24292f", "#d8dee4"


@dataclass(frozen=True, slots=True)
class Figure:
    """One plot: an ``<svg>`` element from :func:`uvsdk.evaluation.plots.svg` with its title and caption."""

    title: str
    svg: str
    caption: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """A table of texts; the first column names the row.

    Args:
        header: one text a column.
        rows: as many texts a row as the header has.
        caption: what a reader must know to read it.
        emphasised: index of a row to set off from the others.
    """

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    caption: str = ""
    emphasised: int | None = None

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.header):
                raise ValueError(f"a row has {len(row)} cells under {len(self.header)} headings")


@dataclass(frozen=True, slots=True)
class Card:
    """One number to see first: its label, the value, and what stands in small print below."""

    label: str
    value: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Section:
    """A heading with paragraphs, then tables, then figures side by side where there is room."""

    title: str
    paragraphs: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()
    figures: tuple[Figure, ...] = ()


@dataclass(frozen=True, slots=True)
class Report:
    """The whole page.

    Args:
        title: heading and window title.
        summary: one or two sentences below it.
        cards: the numbers to see first, at most about four.
        sections: in order.
        command: how the report was made, to make it again.
        environment: name -> value, e.g. from :func:`environment`.
        made: when, shown with its time zone.
    """

    title: str
    summary: str
    sections: tuple[Section, ...]
    cards: tuple[Card, ...] = ()
    command: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    made: datetime | None = None


def environment() -> dict[str, str]:
    """What the numbers were measured with: software versions, system and processor, nothing that names a person."""
    found = {
        "Python": platform.python_version(),
        "System": f"{platform.system()} {platform.machine()}",
        "Processor": _processor(),
    }
    for package in ("uvsdk", "numpy", "onnxruntime", "torch"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def render(report: Report) -> str:
    """The page as text, to be written as UTF-8."""
    body = [
        f"<header><h1>{escape(report.title)}</h1><p>{escape(report.summary)}</p></header>",
        _cards(report.cards),
        *(_section(section) for section in report.sections),
        _origin(report),
    ]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{escape(report.title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(part for part in body if part)
        + "\n</main>\n</body>\n</html>\n"
    )


def _cards(cards: tuple[Card, ...]) -> str:
    if not cards:
        return ""
    cells = "".join(
        f"<div><dt>{escape(card.label)}</dt><dd>{_figures(card.value)}</dd>"
        + (f"<small>{_figures(card.note)}</small>" if card.note else "")
        + "</div>"
        for card in cards
    )
    return f'<dl class="cards">{cells}</dl>'


def _section(section: Section) -> str:
    parts = [f"<h2>{escape(section.title)}</h2>"]
    parts += [f"<p>{escape(text)}</p>" for text in section.paragraphs]
    parts += [_table(table) for table in section.tables]
    if section.figures:
        parts.append(f'<div class="figures">{"".join(_figure(figure) for figure in section.figures)}</div>')
    return f"<section>{''.join(parts)}</section>"


def _table(table: Table) -> str:
    head = "".join(f'<th scope="col">{escape(text)}</th>' for text in table.header)
    rows = []
    for number, (name, *cells) in enumerate(table.rows):
        mark = ' class="emphasised"' if number == table.emphasised else ""
        values = "".join(f"<td>{_figures(text)}</td>" for text in cells)
        rows.append(f'<tr{mark}><th scope="row">{escape(name)}</th>{values}</tr>')
    caption = f'<p class="caption">{escape(table.caption)}</p>' if table.caption else ""
    return (
        f'<div class="table" tabindex="0"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>{caption}"
    )


def _figures(text: str) -> str:
    """Escaped, with no line break between a number and its unit or the dash of its range."""
    return escape(text).replace(" %", "&nbsp;%").replace(" –", "&nbsp;–")


def _figure(figure: Figure) -> str:
    drawing = figure.svg.replace(_INK, "currentColor").replace(_GRID, GRID_VARIABLE)
    drawing = drawing.replace("<svg ", f'<svg role="img" aria-label="{escape(figure.title)}" ', 1)
    caption = f"<span>{escape(figure.caption)}</span>" if figure.caption else ""
    return f"<figure><h3>{escape(figure.title)}</h3>{drawing}<figcaption>{caption}</figcaption></figure>"


def _origin(report: Report) -> str:
    parts = []
    if report.command:
        parts.append(f"<p>Made with</p><pre><code>{escape(report.command)}</code></pre>")
    if report.environment:
        pairs = "".join(
            f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in report.environment.items()
        )
        parts.append(f'<dl class="environment">{pairs}</dl>')
    if report.made is not None:
        parts.append(f"<p>{escape(report.made.strftime('%d %B %Y, %H:%M %Z').strip(' ,'))}</p>")
    return f"<footer><h2>How it was measured</h2>{''.join(parts)}</footer>" if parts else ""


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:  # noqa: PTH123 -- a kernel file, read line by line
            for line in lines:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or "unknown"


_STYLE = """
:root{color-scheme:light dark;--ink:#1c2127;--soft:#5b6570;--paper:#fff;--panel:#f6f8fa;--grid:#d8dee4;
--accent:#0072b2;--mark:#e6f2fa}
@media(prefers-color-scheme:dark){:root{--ink:#e6e9ed;--soft:#9aa4af;--paper:#14181d;--panel:#1d232a;--grid:#343c45;
--accent:#56b4e9;--mark:#173044}
svg [style*="#0072b2"]{filter:brightness(1.6)}}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);line-height:1.55;
font-family:system-ui,-apple-system,"Segoe UI",Roboto,"Noto Sans",sans-serif}
main{max-width:62rem;margin:0 auto;padding:2.5rem 1.25rem 4rem}
header{border-bottom:3px solid var(--accent);padding-bottom:1rem;margin-bottom:1.75rem}
h1{font-size:clamp(1.5rem,4.5vw,2.1rem);line-height:1.2;margin:0 0 .5rem;letter-spacing:-.01em}
h2{font-size:1.2rem;margin:2.6rem 0 .6rem}
h3{font-size:.95rem;margin:0 0 .6rem;font-weight:600}
p{margin:.5rem 0;max-width:46rem}
header p{margin:0;color:var(--soft)}
.cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(10.5rem,1fr));gap:.9rem;margin:0}
.cards div{background:var(--panel);border-radius:.6rem;padding:.9rem 1.1rem}
.cards dt{font-size:.82rem;color:var(--soft)}
.cards dd{margin:.1rem 0;font-size:1.7rem;font-weight:650;letter-spacing:-.01em;font-variant-numeric:tabular-nums}
small,.caption,figcaption,footer{color:var(--soft);font-size:.84rem}
.table{overflow-x:auto;margin:.9rem 0 .4rem;border:1px solid var(--grid);border-radius:.6rem}
table{border-collapse:collapse;width:100%;font-size:.92rem;font-variant-numeric:tabular-nums}
th,td{padding:.5rem .9rem;text-align:right;white-space:nowrap;border-bottom:1px solid var(--grid)}
th:first-child{text-align:left;font-weight:500}
tbody th{white-space:normal;min-width:7rem}
thead th{background:var(--panel);font-size:.82rem;color:var(--soft);font-weight:600}
tbody tr:last-child>*{border-bottom:0}
.emphasised>*{background:var(--mark);font-weight:650}
.figures{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,24rem),1fr));gap:1.1rem;margin-top:1rem}
figure{margin:0;border:1px solid var(--grid);border-radius:.6rem;padding:1rem 1rem .7rem;min-width:0}
figure svg{display:block;width:100%;height:auto;max-height:28rem}
figcaption{margin-top:.5rem}
footer{margin-top:3rem;border-top:1px solid var(--grid)}
footer h2{margin-top:1.2rem;color:var(--ink);font-size:1rem}
pre{background:var(--panel);border-radius:.5rem;padding:.7rem .9rem;overflow-x:auto;white-space:pre-wrap;
overflow-wrap:anywhere;color:var(--ink);margin:.3rem 0 .9rem}
.environment{display:grid;grid-template-columns:repeat(auto-fill,minmax(13rem,1fr));gap:.5rem 1.2rem;margin:0 0 .8rem}
.environment dd{margin:0;color:var(--ink)}
@media(max-width:40rem){td,thead th{white-space:normal}th,td{padding:.45rem .6rem}}
@media print{main{max-width:none;padding:0}section,figure{break-inside:avoid}}
"""
