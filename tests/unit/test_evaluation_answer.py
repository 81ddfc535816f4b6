"""What a device reports of a model: where its strangers come from, and by which template they are scored."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.unit.conftest import MakeBundle
from uvsdk.arrays import Float32
from uvsdk.errors import SettingsError
from uvsdk.federation.messages import TrainingConfig
from uvsdk.federation.round import Method
from uvsdk.release import grid
from uvsdk.release.report import EvaluationTask
from uvsdk.scoring.moments import unit
from uvsdk_device.evaluations import answer

CODEWORD = np.array([0, 0, 1], np.float32)


def reported(features: list[Float32], strangers: Float32, make: MakeBundle) -> tuple[list[int], list[int]]:
    """Filled bins of the impostor histogram with a codeword at hand, and without."""
    bundle = make()
    task = EvaluationTask(1, bundle.version, bundle.version, "cohort", False, strangers, strangers)
    found = [
        answer(task, "cohort", features=features, candidate=bundle, released=bundle, trained=trained).report.candidate
        for trained in (CODEWORD, None)
    ]
    bins = [np.flatnonzero(item.impostor).tolist() for item in found]
    return bins[0], bins[1]


def test_a_codeword_counts_only_once_the_model_has_learnt_it(identity_bundle: MakeBundle) -> None:
    # Strangers in the plane of the first two axes score 0 against the codeword, whoever they are; the owner's mean
    # lies in that plane as well before anything is learnt, so that it is what the owner is verified by.
    rng = np.random.default_rng(1)
    angles = np.concatenate([rng.uniform(0.3, 3.0, 60), rng.uniform(3.3, 6.0, 60)])
    strangers = np.stack([np.cos(angles), np.sin(angles), np.zeros(120)], axis=1).astype(np.float32)
    before = [np.array(row, np.float32) for row in ([1, 0, 0], [0.99, 0.1, 0], [0.99, -0.1, 0])]
    with_codeword, without = reported(before, strangers, identity_bundle)
    assert with_codeword == without
    assert len(with_codeword) > 50

    after = [np.array(row, np.float32) for row in ([0.1, 0, 1], [0, 0.1, 1], [0, -0.1, 1])]
    with_codeword, without = reported(after, strangers, identity_bundle)
    assert with_codeword == grid.bin_of(np.zeros(1)).tolist()
    assert without != with_codeword

    # One stranger who reaches as far as the owner does is enough for the mean.
    near = np.asarray(unit(np.array([0.05, 0.0, 1.0])), np.float32)
    with_codeword, without = reported(after, np.concatenate([strangers, near[None]]), identity_bundle)
    assert with_codeword == without


@pytest.mark.parametrize(
    ("algorithm", "instead"), [("feduv", "scores alone"), ("fedmetric", "scores alone"), ("fedaws", "or 'moments'")]
)
def test_what_a_device_makes_up_is_no_source_of_impostors(algorithm: str, instead: str) -> None:
    method = Method.of(TrainingConfig("clinic", "voice", "ge2e+255", algorithm, evaluation="own"))
    with pytest.raises(SettingsError, match=f"measured to let in ten times as many.*{instead}$"):
        _ = method.impostors
    assert Method.of(replace(method.config, evaluation="cohort")).impostors == "cohort"


@pytest.mark.parametrize("algorithm", ["feduv", "fedmetric"])
def test_methods_that_tell_no_vector_ask_for_a_cohort(algorithm: str) -> None:
    config = TrainingConfig("clinic", "voice", "ge2e+255", algorithm)
    assert Method.of(config).impostors == "cohort"
    with pytest.raises(SettingsError, match="'moments' is refused under"):
        _ = Method.of(replace(config, evaluation="moments")).impostors
