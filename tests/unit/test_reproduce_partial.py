"""The figures and the split of ``examples/reproduce/partial``."""

import numpy as np
import pytest

pytest.importorskip("scipy")

from examples.reproduce.partial import corpus, figures, plans, table
from examples.reproduce.partial.corpus import Person
from examples.reproduce.partial.figures import Enrolled, Scores
from uvsdk.evaluation import metrics
from uvsdk.training import backbones


def scores(seed: int, gap: float, people: int = 6, probes: int = 5) -> Scores:
    rng = np.random.default_rng(seed)
    rows = [rng.normal(0, 1, (probes, people)) + gap * np.eye(people)[number] for number in range(people)]
    return Scores(tuple(f"p{number}" for number in range(people)), tuple(rows))


def test_eer_by_hand() -> None:
    # Genuine 0.9 and 0.7, impostor 0.8 and 0.1: at 0.75 one of two is wrong on either side.
    assert Scores(("a", "b"), (np.array([[0.9, 0.8]]), np.array([[0.1, 0.7]]))).eer() == 0.5
    assert Scores(("a", "b"), (np.array([[0.9, 0.2]]), np.array([[0.1, 0.7]]))).eer() == 0.0


@pytest.mark.parametrize("seed", range(5))
def test_eer_is_that_of_the_library(seed: int) -> None:
    found = scores(seed, 1.0)
    rows = np.concatenate(found.probes)
    own = np.repeat(np.arange(6), 5)[:, None] == np.arange(6)
    expected = metrics.eer(metrics.curve(rows[own], rows[~own]))
    assert found.eer() == pytest.approx(expected, abs=0.04)  # a trial in 30 lies between the two rules at a step


def test_a_person_drawn_twice_counts_twice() -> None:
    plain = scores(0, 1.0, people=3)
    # Twice the same person under two names: as often drawn, with no impostor trial between the two.
    counted = plain.sorted().eer(np.array([2, 1, 1]))
    once = plain.sorted().eer(np.array([1, 1, 1]))
    assert counted != once
    assert plain.sorted().eer(np.array([3, 3, 3])) == pytest.approx(once)


def test_what_is_not_compared_counts_nowhere() -> None:
    nothing = np.nan
    # a and b took part, c did not: only c's probe meets their templates. One of two genuine is below its 0.8.
    rows = ([[0.9, nothing, nothing]], [[nothing, 0.7, nothing]], [[0.8, 0.1, nothing]])
    found = Scores(("a", "b", "c"), tuple(np.array(each) for each in rows))
    assert found.eer() == 0.5
    assert found.sorted().meets(np.array([1, 0, 1]))
    assert not found.sorted().meets(np.array([1, 1, 0]))  # nobody is left who did not take part
    assert not found.sorted().meets(np.array([0, 0, 1]))
    interval = figures.interval([found])
    assert 0.0 <= interval.low <= interval.value <= interval.high <= 1.0


def test_impostors_who_took_part_and_who_did_not() -> None:
    # Two who trained, along the axes, and one who did not, between them.
    axes, between = np.eye(2), np.array([[0.6, 0.8]])
    seen = Enrolled(("a", "b"), axes, (axes[:1], axes[1:]))
    found = figures.parts(seen, Enrolled(("c",), between, (between,)))
    assert list(found) == list(figures.PARTS)
    assert np.array_equal(np.concatenate(found["seen"].probes), axes)
    nothing = np.nan
    expected = np.array([[1.0, nothing, nothing], [nothing, 1.0, nothing], [0.6, 0.8, nothing]])
    assert np.array_equal(np.concatenate(found["strangers"].probes), expected, equal_nan=True)


def test_intervals_and_gains() -> None:
    before, after = [scores(1, 1.0), scores(2, 1.0)], [scores(1, 2.5), scores(2, 2.5)]
    found = figures.interval(before)
    assert found.low <= found.value <= found.high
    assert found.value == pytest.approx(np.mean([group.eer() for group in before]))
    better = figures.gain(before, after)
    assert 0 < better.low < better.value < better.high
    same = figures.gain(before, before)
    assert (same.value, same.low, same.high) == (0.0, 0.0, 0.0)


def people(count: int, strangers: int = 0) -> dict[str, Person]:
    nothing = Person((), ())
    return {f"{number:03d}": nothing for number in range(count)} | {
        f"stranger {number}": nothing for number in range(strangers)
    }


@pytest.mark.parametrize(("kind", "everybody"), [("letters", people(20)), ("small faces", people(129))])
def test_everybody_is_unseen_once_and_who_tunes_is_never_measured(kind: str, everybody: dict[str, Person]) -> None:
    splits = [corpus.split(everybody, kind, seed) for seed in range(3)]
    tuning = set(splits[0].validation)
    assert all(set(found.validation) == tuning for found in splits)
    unseen = [name for found in splits for name in found.unseen]
    assert sorted(unseen) == sorted(set(everybody) - tuning)
    for found in splits:
        assert set(found.train) == set(everybody) - tuning - set(found.unseen)


def test_strangers_never_train() -> None:
    found = corpus.split(people(226, 13), "telephone", 1)
    assert len(found.unseen) == 13
    assert all(name.startswith("stranger") for name in found.unseen)
    assert not any(name.startswith("stranger") for name in (*found.train, *found.validation))
    assert len(found.train) + len(found.validation) == 226


def test_every_plan_can_be_built() -> None:
    settings = {(plan.algorithm, plan.setting) for plan in plans.PLANS}
    assert len(settings) == len(plans.PLANS)
    for plan in plans.PLANS:
        kind = backbones.get(plan.backbone, plan.train)
        assert (kind.modality, kind.part) == (plan.modality, plan.train)
        assert plan.config(0).train == plan.train


def test_the_page_shows_its_rows() -> None:
    assert table.table() in (table.HERE / "README.md").read_text(encoding="utf-8")
