"""Memory that does not grow, threads that never cross, results that are the same to the last bit.

The quick part of ``tests/benchmarks/reliability``; the digits model always, voice and face where weights and recordings
are there.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

import numpy as np
import pytest

from tests import real_data, reliability
from uvsdk.bundle import Bundle, shipped
from uvsdk.bundle.inference import embed
from uvsdk.errors import NoInkError, WeightsError
from uvsdk.verify import verify


@dataclass(frozen=True)
class Case:
    bundle: Bundle
    samples: list[bytes]
    soak: int
    """Verifications, of which the first half is warm-up."""


def _digits() -> Case:
    pytest.importorskip("sklearn")
    return Case(shipped(), reliability.digit_pages(50), 800)


def _voice() -> Case:
    export = pytest.importorskip("uvsdk.training.export", reason="making a voice bundle needs the train extra")
    backbones = pytest.importorskip("uvsdk.training.backbones")
    folder = real_data.file("speech_librispeech")
    try:
        bundle = export.export_bundle(backbones.get("ge2e").load())
    except WeightsError as error:
        pytest.skip(f"the voice model cannot be had: {error}")
    return Case(bundle, reliability.recordings(folder, 10, (1.6, 2.6)), 80)


def _face() -> Case:
    sface = pytest.importorskip("uvsdk.training.graphs.sface", reason="making a face bundle needs the train extra")
    archive = real_data.file("lfw_fold1_originals.tar")
    try:
        bundle = sface.sface_bundle()
    except WeightsError as error:
        pytest.skip(f"the face model cannot be had: {error}")
    return Case(bundle, reliability.photographs(archive, bundle, 10), 80)


@pytest.fixture(scope="module", params=[_digits, _voice, _face], ids=["digits", "voice", "face"])
def case(request: pytest.FixtureRequest) -> Case:
    made: Case = request.param()
    return made


def test_fifty_threads_never_cross(case: Case) -> None:
    """Every thread's embedding is the single-threaded one, bit for bit."""
    assert reliability.crossed(case.bundle, case.samples, threads=50, rounds=case.soak // 80) == 0


def test_one_thread_and_four_give_the_same_bits(case: Case) -> None:
    assert reliability.differing(case.bundle, case.samples[:5]) == 0


def test_samples_embedded_together_are_as_embedded_alone(case: Case) -> None:
    # Sums of 256 to 512 products in another order: a few units in the last place of float32 at most.
    assert reliability.batch_difference(case.bundle, case.samples[:8]) <= 1e-6


def test_the_same_pair_gives_the_same_score_every_time(case: Case) -> None:
    repeats = 1000 if case.bundle.manifest.modality == "handwriting" else 20
    assert reliability.distinct(case.bundle, case.samples, repeats) == 1


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_does_not_grow(case: Case) -> None:
    """After the warm-up less than 1 MB in all; a single leaked recording or picture each time would be 20 MB."""
    points = reliability.soak(case.bundle, case.samples, case.soak, case.soak // 20)
    after = [megabytes for number, megabytes in points if number > case.soak // 2]
    assert after[-1] - after[0] < 1.0, points


def test_different_inputs_give_different_results(case: Case) -> None:
    """No two samples share an embedding: a model that says the same whatever it is given would."""
    rows = np.stack([embed(sample, case.bundle).embedding for sample in case.samples[:8]])
    cosines = rows @ rows.T
    assert (cosines[~np.eye(len(rows), dtype=bool)] < 0.9999).all()
    assert len({row.tobytes() for row in rows}) == len(rows)


def test_a_sample_with_nothing_in_it_is_an_error_and_never_accepted() -> None:
    template = reliability.template_of(shipped(), reliability.digit_pages(1)[0])
    blank = np.full((32, 32), 255, np.uint8)
    with pytest.raises(NoInkError):
        verify(blank, template, model=shipped(), threshold=reliability.THRESHOLD)
