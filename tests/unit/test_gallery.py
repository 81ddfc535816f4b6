"""The gallery: exact searches, ties, people who come and go, and threads."""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.builders import unit
from uvsdk.arrays import Float32, Float64, Int64
from uvsdk.errors import ModelMismatchError, SampleError, SettingsError, UnknownUserError
from uvsdk.templates import gallery as module
from uvsdk.templates.gallery import Candidate, Gallery
from uvsdk.templates.storage import MemoryStore
from uvsdk.templates.template import Template
from uvsdk.verify import compare

Knn = Callable[[Float32, Float32, int], tuple[Float32, Int64]]


def unit32(rows: Float64) -> Float32:
    return unit(rows).astype(np.float32)


def template(*numbers: float, model: str = "m", modality: str = "voice") -> Template:
    return Template(unit32(np.array(numbers, np.float64)), model, modality, 3)


def random_rows(people: int, dimension: int, seed: int = 0) -> Float32:
    return unit32(np.random.default_rng(seed).standard_normal((people, dimension)))


def filled(rows: Float32) -> Gallery:
    return Gallery({f"{place:06d}": Template(row, "m", "voice", 1) for place, row in enumerate(rows)})


def test_scores_by_hand() -> None:
    gallery = Gallery({"ana": template(1, 0), "ben": template(0, 1), "cy": template(-1, 0)})
    found = gallery.search(np.array([0.8, 0.6], np.float32), top=3)
    assert [candidate.user_id for candidate in found.candidates] == ["ana", "ben", "cy"]
    assert [candidate.score for candidate in found.candidates] == pytest.approx([0.8, 0.6, -0.8])
    assert (found.people, found.tied) == (3, 1)
    assert len(gallery.search(np.array([0.8, 0.6], np.float32), top=99).candidates) == 3
    assert gallery.highest(np.eye(2, dtype=np.float32)) == pytest.approx([1.0, 1.0])


def test_the_score_is_the_one_verify_gives() -> None:
    rows = random_rows(40, 24)
    probe = random_rows(1, 24, seed=1)[0]
    for candidate in filled(rows).search(probe, top=40).candidates:
        own = Template(rows[int(candidate.user_id)], "m", "voice", 1)
        assert candidate.score == pytest.approx(compare(probe, own), abs=1e-15)


def test_an_empty_gallery_finds_nobody() -> None:
    gallery = Gallery()
    found = gallery.search(np.array([1, 0], np.float32))
    assert (found.candidates, found.people, found.tied) == ((), 0, 0)
    assert len(gallery) == 0
    assert gallery.model_version == ""
    assert repr(gallery) == "Gallery(0 people, model none yet)"


def test_ids_and_embeddings_are_in_no_repr() -> None:
    gallery = Gallery({"secret-name": template(3, 4)})
    found = gallery.search(np.array([1, 0], np.float32))
    for text in (repr(gallery), repr(found), repr(found.candidates[0])):
        assert "secret-name" not in text
    assert repr(Candidate("ana", 0.5)) == "Candidate(score=0.5)"


def test_equal_templates_tie_even_where_one_candidate_is_asked_for() -> None:
    rows = random_rows(100, 37)
    gallery = filled(rows)
    for copy in range(50):  # scattered over the matrix, so that no block of a product holds them all
        gallery.add(f"copy {copy:02d}", Template(rows[17], "m", "voice", 1))
    probe = unit32(rows[17].astype(np.float64) + 0.05)
    found = gallery.search(probe, top=1)
    assert found.tied == 51
    assert [candidate.user_id for candidate in found.candidates] == ["000017"]
    wide = gallery.search(probe, top=60)
    assert len({candidate.score for candidate in wide.candidates[:51]}) == 1
    assert [candidate.user_id for candidate in wide.candidates[1:51]] == [f"copy {copy:02d}" for copy in range(50)]


def test_all_templates_equal() -> None:
    found = filled(np.tile(np.array([[0.6, 0.8]], np.float32), (9000, 1))).search(np.array([0.6, 0.8], np.float32))
    assert found.tied == 9000


def test_adding_somebody_again_replaces_the_template() -> None:
    gallery = Gallery({"Ana": template(1, 0), "ben": template(0, 1)})
    gallery.add("ana", template(0, -1))
    assert len(gallery) == 2
    assert gallery.users() == ("ana", "ben")  # spelled as when last added
    assert "ANA" in gallery
    assert "cy" not in gallery
    assert "" not in gallery
    assert 7 not in gallery
    assert gallery.search(np.array([0, -1], np.float32)).candidates[0].user_id == "ana"


def test_whoever_is_removed_is_never_found_again() -> None:
    rows = random_rows(33, 5)
    gallery = filled(rows)
    for place in (0, 32, 16, 1, 31):  # first, last, middle
        gallery.remove(f"{place:06d}")
        found = gallery.search(rows[place], top=33).candidates
        assert f"{place:06d}" not in {candidate.user_id for candidate in found}
        assert len(found) == len(gallery)
    for place in range(2, 16):  # everybody else is still found
        assert gallery.search(rows[place]).candidates[0].user_id == f"{place:06d}"
    with pytest.raises(UnknownUserError) as caught:
        gallery.remove("000000")
    assert "000000" not in str(caught.value)


def test_the_last_one_out_frees_the_gallery_for_another_model() -> None:
    gallery = Gallery({"ana": template(1, 0)})
    gallery.remove("ana")
    gallery.add("ana", template(1, 0, 0, model="newer"))
    assert gallery.model_version == "newer"
    assert gallery.search(np.array([1, 0, 0], np.float32)).people == 1


def test_models_modalities_and_dimensions_are_not_mixed() -> None:
    gallery = Gallery({"ana": template(1, 0)})
    for stranger in (template(1, 0, model="other"), template(1, 0, modality="face"), template(1, 0, 0)):
        with pytest.raises(ModelMismatchError):
            gallery.add("ben", stranger)
    assert gallery.users() == ("ana",)
    with pytest.raises(ModelMismatchError, match="scores of different models cannot be ranked"):
        Gallery({"ana": template(1, 0), "ben": template(1, 0, model="other")})
    with pytest.raises(ModelMismatchError, match="2 dimensions"):
        gallery.search(np.array([1, 0, 0], np.float32))


@pytest.mark.parametrize("bad", [[np.nan, 0], [np.inf, 0], [0, 0], [2, 0]])
def test_an_embedding_that_means_nothing_is_refused(bad: list[float]) -> None:
    gallery = Gallery({"ana": template(1, 0)})
    with pytest.raises(SampleError, match="norm 1"):
        gallery.search(np.array(bad, np.float32))
    for top in (0, -1):
        with pytest.raises(SettingsError):
            gallery.search(np.array([1, 0], np.float32), top=top)


def test_bad_ids_change_nothing() -> None:
    gallery = Gallery()
    for bad in ("", "half\ud800"):
        with pytest.raises(SettingsError):
            gallery.add(bad, template(1, 0))
    assert len(gallery) == 0


def test_from_a_store() -> None:
    store = MemoryStore()
    store.save_enrolment("ana", template(1, 0), [])
    store.save_enrolment("ben", template(0, 1), [])
    gallery = Gallery.from_store(store)
    assert gallery.users() == ("ana", "ben")
    store.save_enrolment("ben", template(0, 1, model="other"), [])
    with pytest.raises(ModelMismatchError):
        Gallery.from_store(store)


def test_changes_count_everything_that_moves_a_measurement() -> None:
    gallery = Gallery({"ana": template(1, 0)})
    start = gallery.changes
    gallery.search(np.array([1, 0], np.float32))
    assert gallery.changes == start
    gallery.add("ana", template(0, 1))
    gallery.remove("ana")
    assert gallery.changes == start + 2


def brute_force(rows: Float32, probe: Float32, top: int) -> list[int]:
    """Every score in float64, by the same rounding as the gallery's: products summed row by row."""
    scores = (rows.astype(np.float64) * probe.astype(np.float64)).sum(axis=1)
    return sorted(range(len(rows)), key=lambda place: (-np.clip(scores[place], -1, 1), place))[:top]


@given(
    seed=st.integers(0, 2**32 - 1),
    people=st.integers(1, 300),
    dimension=st.integers(1, 40),
    top=st.integers(1, 12),
    spread=st.sampled_from([1.0, 1e-3, 1e-6, 1e-8, 0.0]),
)
@settings(max_examples=60, deadline=None)
def test_a_search_is_exact_however_close_the_rows_lie(
    seed: int, people: int, dimension: int, top: int, spread: float
) -> None:
    # At a spread of 1e-6 and below, float32 cannot tell the rows' scores apart and float64 can.
    rng = np.random.default_rng(seed)
    centre = rng.standard_normal(dimension)
    rows = unit32(centre + spread * rng.standard_normal((people, dimension)) + 1e-3)
    probe = unit32(centre + 0.1 * rng.standard_normal(dimension))
    found = filled(rows).search(probe, top).candidates
    assert [int(candidate.user_id) for candidate in found] == brute_force(rows, probe, top)


def without_faiss(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_knn", lambda: None)


@pytest.mark.parametrize("spread", [1.0, 1e-6, 0.0])
def test_faiss_gives_the_same_answer_to_the_last_bit(monkeypatch: pytest.MonkeyPatch, spread: float) -> None:
    pytest.importorskip("faiss", reason="faiss is in the scale extra")
    rng = np.random.default_rng(5)
    centre = rng.standard_normal(16)
    gallery = filled(unit32(centre + spread * rng.standard_normal((3000, 16))))
    probes = unit32(centre + spread * rng.standard_normal((20, 16)) + 0.1)
    plain = [gallery.search(probe, 7) for probe in probes]
    asked = []
    inner = module._knn()
    assert inner is not None

    def counted(probes: Float32, rows: Float32, wanted: int) -> tuple[Float32, Int64]:
        asked.append(wanted)
        return inner(probes, rows, wanted)

    monkeypatch.setattr(module, "FAISS_FROM", 1)
    monkeypatch.setattr(module, "_knn", lambda: counted)
    assert [gallery.search(probe, 7) for probe in probes] == plain
    assert asked
    # Rows that float32 cannot tell apart ask for more and more, and in the end for all.
    assert (max(asked) > 100) == (spread < 1)


def test_the_gallery_works_where_faiss_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = random_rows(50, 8)
    monkeypatch.setattr(module, "FAISS_FROM", 1)
    monkeypatch.setitem(sys.modules, "faiss", None)
    module._knn.cache_clear()
    try:
        assert filled(rows).search(rows[9]).candidates[0].user_id == "000009"
    finally:
        module._knn.cache_clear()


def test_threads_search_while_people_come_and_go() -> None:
    rows = random_rows(200, 16)
    gallery = filled(rows[:100])
    stop = threading.Event()

    def churn() -> None:
        while not stop.is_set():
            for place in range(100, 200):
                gallery.add(f"{place:06d}", Template(rows[place], "m", "voice", 1))
            for place in range(100, 200):
                gallery.remove(f"{place:06d}")

    def look(place: int) -> bool:
        found = gallery.search(rows[place], top=3)
        # Whoever stays is always found with their own score, whatever moves around them.
        return found.candidates[0].user_id == f"{place:06d}" and math.isclose(
            found.candidates[0].score, 1.0, abs_tol=1e-6
        )

    changer = threading.Thread(target=churn)
    changer.start()
    try:
        with ThreadPoolExecutor(8) as pool:
            assert all(pool.map(look, [place % 100 for place in range(600)]))
    finally:
        stop.set()
        changer.join()
    assert len(gallery) == 100
