"""The page names nothing outside itself, escapes every text, and the plots are what was asked for."""

from __future__ import annotations

from datetime import UTC, datetime
from html.parser import HTMLParser

import numpy as np
import pytest

from uvsdk.evaluation import metrics, plots, report

EVIL = '<script>alert("1")</script> & \'"'


def curves() -> dict[str, metrics.Curve]:
    rng = np.random.default_rng(0)
    return {
        name: metrics.curve(rng.normal(shift, 1, 400), rng.normal(0, 1, 4000))
        for name, shift in (("before", 1.5), ("FedAwS <new>", 2.5))
    }


class Page(HTMLParser):
    """Collects the tags, and checks that they nest."""

    VOID = frozenset({"meta", "link", "br", "img", "hr", "input"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs


def full_page() -> str:
    figures = (
        report.Figure(EVIL, plots.svg(plots.det(curves())), EVIL),
        report.Figure("ROC", plots.svg(plots.roc(curves()))),
        report.Figure("Scores", plots.svg(plots.histogram(np.linspace(0, 1, 50), np.linspace(-1, 0.3, 90)))),
        report.Figure("Training", plots.svg(plots.training({"loss": ([1, 2, 3], [0.5, 0.3, 0.2])}, ylabel="Loss"))),
    )
    section = report.Section(
        EVIL, (EVIL,), (report.Table((EVIL, "EER"), ((EVIL, EVIL), ("b", "2 %")), EVIL, emphasised=1),), figures
    )
    return report.render(
        report.Report(
            title=EVIL,
            summary=EVIL,
            sections=(section,),
            cards=(report.Card(EVIL, EVIL, EVIL),),
            command=EVIL,
            environment={EVIL: EVIL, **report.environment()},
            made=datetime(2030, 5, 6, 7, 8, tzinfo=UTC),
        )
    )


def test_the_page_is_well_formed_and_every_text_is_escaped() -> None:
    page = Page()
    text = full_page()
    page.feed(text)
    page.close()
    assert page.open == []
    assert "script" not in page.tags
    assert "&lt;script&gt;" in text
    assert "06 May 2030, 07:08 UTC" in text


def test_the_page_names_nothing_outside_itself() -> None:
    text = full_page()
    for word in ("http:", "https:", "//", "@import", "url(h", "src="):
        assert word not in text, word
    page = Page()
    page.feed(text)
    for name, value in page.attributes:
        if name in ("href", "src"):
            assert value is not None
            assert value.startswith("#")
    assert not {"img", "link", "iframe", "object"} & set(page.tags)


def test_plots_follow_the_colours_of_the_page() -> None:
    text = full_page()
    drawings = text[text.index("<svg") :]
    assert plots.INK not in drawings
    assert plots.GRID not in drawings
    assert "currentColor" in drawings


def test_plots_of_few_values() -> None:
    assert "<svg" in plots.svg(plots.by_person([0.0, 0.5, 0.1]))
    assert "<svg" in plots.svg(plots.by_person([0.0]))
    assert "<svg" in plots.svg(plots.histogram(np.ones(5), np.zeros(5), threshold=np.inf, name="one value each"))


def test_plots_of_collapsed_and_perfect_models() -> None:
    extremes = {
        "collapsed": metrics.curve(np.ones(10), np.ones(50)),
        "perfect": metrics.curve(np.ones(10), np.zeros(50)),
    }
    assert "<svg" in plots.svg(plots.det(extremes))
    assert "<svg" in plots.svg(plots.roc(extremes))
    assert "<svg" in plots.svg(plots.histogram(np.ones(3), np.ones(3)))


def test_a_long_curve_is_drawn_with_few_points() -> None:
    rng = np.random.default_rng(1)
    points = metrics.curve(rng.normal(2, 1, 50_000), rng.normal(0, 1, 200_000))
    assert len(metrics.det_points(points)[0]) > 20_000
    assert len(plots.svg(plots.det({"model": points}))) < 150_000


def test_cells_and_headings_match() -> None:
    with pytest.raises(ValueError, match="3 cells under 2 headings"):
        report.Table(("a", "b"), (("1", "2", "3"),))


def test_the_page_and_the_plots_agree_on_the_two_colours() -> None:
    assert (report._INK, report._GRID) == (plots.INK, plots.GRID)
