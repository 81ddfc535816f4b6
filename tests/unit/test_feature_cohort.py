"""A cohort of features: what is read, and what a device refuses to score itself against."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from uvsdk.arrays import Float32
from uvsdk.bundle import shipped
from uvsdk.errors import BundleError, ModelMismatchError, WireError
from uvsdk.release.cohort import FeatureCohort, check_rows

PERSON = [place // 5 for place in range(100)]


def cohort(**changes: object) -> FeatureCohort:
    rng = np.random.default_rng(0)
    features = [rng.uniform(0, 1, (8, 8)).astype(np.float32) for _ in PERSON]
    return replace(FeatureCohort.of(features, PERSON, modality="handwriting", source="a test", now=5.0), **changes)  # type: ignore[arg-type]


def strangers(count: int = 100) -> Float32:
    rows = np.random.default_rng(1).standard_normal((count, 32))
    unit: Float32 = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
    return unit


def test_a_cohort_survives_its_file_and_is_embedded_without_torch() -> None:
    made = cohort()
    read = FeatureCohort.from_bytes(made.to_bytes())
    assert (read.modality, read.source, read.made_unix_s, read.people) == ("handwriting", "a test", 5.0, 20)
    assert read.embedded(shipped()) == pytest.approx(made.embedded(shipped()))
    assert read.embedded(shipped()).shape == (100, 32)


@pytest.mark.parametrize(
    "changes",
    [
        {"person": np.zeros(100, np.int64)},
        {"person": np.full(100, -1)},
        {"person": np.array(PERSON[:-1])},
        {"features": {str(place): np.ones((1, 8, 8), np.float32) for place in range(99)}},
        {"features": {str(place + 1): np.ones((1, 8, 8), np.float32) for place in range(100)}},
        {"features": {str(place): np.full((1, 8, 8), np.nan, np.float32) for place in range(100)}},
        {"source": ""},
    ],
)
def test_what_is_no_cohort_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(WireError):
        cohort(**changes)


def test_damage_and_another_modality_are_refused() -> None:
    data = cohort().to_bytes()
    for bad in (b"", data[:40], b"UVC1" + data[4:], data[:-1]):
        with pytest.raises(WireError):
            FeatureCohort.from_bytes(bad)
    with pytest.raises(ModelMismatchError):
        cohort(modality="voice").embedded(shipped())


@pytest.mark.parametrize(
    "rows",
    [
        strangers(99),
        2 * strangers(),
        np.repeat(strangers(1), 100, axis=0),
        np.full((100, 32), np.nan, np.float32),
    ],
    ids=["few", "not unit", "one repeated", "not finite"],
)
def test_a_device_scores_itself_against_many_different_strangers_only(rows: Float32) -> None:
    check_rows(strangers())
    with pytest.raises(BundleError):
        check_rows(rows)
