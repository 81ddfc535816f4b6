"""What ``examples/reproduce/learning`` counts, by hand, and that its page says what its rows say."""

import numpy as np
import pytest

pytest.importorskip("scipy")
pytest.importorskip("torch")

from examples.reproduce import record
from examples.reproduce.learning import linear, membership, table
from uvsdk.arrays import Float64


def crowd(seed: int, people: int) -> Float64:
    rows = np.random.default_rng(seed).standard_normal((people, 16)) + 1.0
    unit: Float64 = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return unit


@pytest.mark.parametrize("whitened", [False, True])
def test_a_mean_of_few_gives_its_people_away(whitened: bool) -> None:
    people = [crowd(seed, 60) for seed in range(20)]
    few, many = (
        np.mean([membership.guessed(rows, rows, size, whitened=whitened) for rows in people]) for size in (4, 30)
    )
    assert few > many > 0.55


@pytest.mark.parametrize("whitened", [False, True])
def test_of_people_nobody_knows_only_chance_is_left(whitened: bool) -> None:
    found = [membership.guessed(crowd(seed, 60), crowd(1000 + seed, 60), 20, whitened=whitened) for seed in range(40)]
    assert np.mean(found) == pytest.approx(0.5, abs=0.04)


def test_a_map_makes_what_a_person_varies_in_alike_in_every_direction() -> None:
    rng = np.random.default_rng(0)
    spread = np.diag([4.0, 1.0, 0.25])
    people = [rng.normal(0, 1, 3) + rng.standard_normal((200, 3)) @ spread for _ in range(50)]
    sums = linear.Sums.of(people)
    white = linear.whitening(sums.within, 0.0)
    assert white @ sums.within @ white.T == pytest.approx(np.eye(3), abs=1e-9)
    assert sums.within == pytest.approx(spread**2, abs=0.6)


def test_normalised_scores_of_strangers_have_one_mean_and_spread() -> None:
    people = crowd(0, 400)
    template, probe = linear.sides(people)
    scores = template(people[:200]) @ probe(people[200:]).T
    assert scores.mean() == pytest.approx(0.0, abs=0.1)
    assert scores.std() == pytest.approx(1.0, abs=0.2)


def test_the_page_shows_its_rows() -> None:
    page = (membership.HERE / "README.md").read_text(encoding="utf-8")
    assert membership.table(record.read(membership.HERE / "membership.csv")) in page
    assert linear.table(record.read(linear.HERE / "linear.csv")) in page
    assert table.table(record.read(table.HERE / "results.csv")) in page
