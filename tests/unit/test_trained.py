"""Samples that took part in training raise nobody's threshold: the device knows which, and since which model."""

from __future__ import annotations

import pytest

from tests.unit.conftest import IMPOSTORS, MakeBundle
from uvsdk import enroll
from uvsdk.bundle import Bundle
from uvsdk.errors import StoreError
from uvsdk.templates.template import Template
from uvsdk_device import EncryptedStore, Runtime
from uvsdk_device.trained import MEMORY, fresh_samples, note_trained

# Nineteen samples at (1, 0.001 i, 0) and one at (0.7, 0, 0.714), told apart by their small second number. The odd one
# scores 0.7 against the others and the rest almost 1, so the 5 % quantile is 0.7; 0.3 % of the impostors reach 0.4975.
SAMPLES = [b"1 %.3f 0" % (0.001 * index) for index in range(19)] + [b"0.7 0 0.714143"]
ODD = 0.7


def limit(template: Template) -> float:
    assert template.threshold is not None
    return template.threshold.score


@pytest.fixture
def founding(identity_bundle: MakeBundle) -> Bundle:
    return identity_bundle(IMPOSTORS)


@pytest.fixture
def later(identity_bundle: MakeBundle) -> Bundle:
    return identity_bundle(IMPOSTORS, name="later")


@pytest.fixture
def enrolled(store: EncryptedStore, founding: Bundle, later: Bundle) -> Template:
    template = enroll("ana", SAMPLES, model=founding, store=store, outliers="keep").template
    store.accept_model(later)
    return template


def test_whoever_only_evaluates_keeps_a_raised_threshold_under_a_later_model(
    store: EncryptedStore, enrolled: Template, later: Bundle
) -> None:
    assert limit(enrolled) == pytest.approx(ODD, abs=1e-3)
    assert limit(Runtime(store, later).template("ana")) == pytest.approx(ODD, abs=1e-3)


def test_whoever_trains_is_verified_at_the_rates_own_threshold(
    store: EncryptedStore, enrolled: Template, founding: Bundle, later: Bundle
) -> None:
    note_trained(store, "ana", store.features("ana"), model_version=founding.version)
    assert later.calibration is not None
    own = later.calibration.threshold(0.003).score
    assert limit(Runtime(store, later).template("ana")) == own < limit(enrolled)
    # The model that the round began from was made without these samples: under it they are fresh.
    assert limit(Runtime(store, founding).template("ana")) == limit(enrolled)


def test_the_model_before_the_first_round_is_the_one_that_counts(
    store: EncryptedStore, enrolled: Template, founding: Bundle, later: Bundle
) -> None:
    features = store.features("ana")
    note_trained(store, "ana", features, model_version=founding.version)
    note_trained(store, "ana", features, model_version=later.version)  # a second round
    assert fresh_samples(store, "ana", features, founding.version).all()
    assert not fresh_samples(store, "ana", features, later.version).any()


def test_samples_that_came_later_are_fresh(
    store: EncryptedStore, enrolled: Template, founding: Bundle, later: Bundle
) -> None:
    note_trained(store, "ana", store.features("ana"), model_version=founding.version)
    more = [b"0.8 %.3f 0.6" % (0.001 * index) for index in range(19)]
    nineteen = enroll("ana", more, model=later, store=store, existing="extend", outliers="keep").template
    assert later.calibration is not None
    assert limit(nineteen) == later.calibration.threshold(0.003).score
    twenty = enroll("ana", [b"0.8 0.1 0.6"], model=later, store=store, existing="extend", outliers="keep").template
    fresh = fresh_samples(store, "ana", store.features("ana"), later.version)
    assert fresh.tolist() == [False] * 20 + [True] * 20
    assert limit(twenty) > limit(nineteen)  # twenty fresh ones have a 5 % quantile
    # Enrolled anew nothing is left of what trained.
    anew = enroll("ana", [b"0 1 %.3f" % (0.001 * index) for index in range(20)], model=later, store=store).template
    assert fresh_samples(store, "ana", store.features("ana"), later.version).all()
    assert limit(anew) > 0.99


def test_a_device_that_took_part_before_this_was_noted_counts_all_as_trained(
    store: EncryptedStore, enrolled: Template, founding: Bundle
) -> None:
    store.put(MEMORY, [b"whatever"], name="server", user="ana")
    features = store.features("ana")
    assert not fresh_samples(store, "ana", features, founding.version).any()
    note_trained(store, "ana", features, model_version=founding.version)
    assert not fresh_samples(store, "ana", features, founding.version).any()


def test_it_goes_with_the_user_and_a_damaged_record_is_an_error(
    store: EncryptedStore, enrolled: Template, founding: Bundle, later: Bundle
) -> None:
    features = store.features("ana")
    store.put("trained", [b"[]"], user="ana")
    with pytest.raises(StoreError, match="took part in training does not read"):
        fresh_samples(store, "ana", features, later.version)
    store.delete("ana")
    assert fresh_samples(store, "ana", features, later.version).tolist() == [True] * 20
