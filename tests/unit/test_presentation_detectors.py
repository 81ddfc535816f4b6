"""The interface of presentation attack detectors: who is asked, what the decision keeps, what is refused."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from tests.modality_graphs import register
from tests.unit.conftest import MakeBundle
from uvsdk import modality
from uvsdk.arrays import Float32
from uvsdk.bundle import Bundle
from uvsdk.errors import SettingsError
from uvsdk.modality import Capture, Captured, Prepared, Sample
from uvsdk.presentation import PresentationAttackDetector, check, examine
from uvsdk.scoring import Presentation, Threshold
from uvsdk.templates.template import Template
from uvsdk.verify import verify


@dataclass(frozen=True)
class CapturedNumbers:
    text: bytes
    modality: str = "numbers"


@dataclass(frozen=True)
class FewDigits:
    """Takes text of more than ``most`` characters for an attack."""

    most: int
    name: str = "few-digits"
    modality: str = "numbers"

    def assess(self, captured: Captured, embedding: Float32) -> Presentation:
        assert isinstance(captured, CapturedNumbers)
        assert np.linalg.norm(embedding) == pytest.approx(1.0)
        over = len(captured.text) - self.most
        return Presentation(self.name, -float(over), 0.0, ("too many digits: use fewer",) if over > 0 else ())


def capturing(inner: modality.Modality, *, keeps: bool = True) -> modality.Modality:
    """The modality of the tests, which here keeps what it read for detectors."""

    def prepare(sample: Sample, bundle: object, *, capture: Capture | None = None) -> Prepared:
        assert isinstance(sample, bytes)
        prepared = inner.prepare(sample, bundle)  # type: ignore[arg-type]
        return replace(prepared, captured=CapturedNumbers(sample) if keeps else None)

    return replace(inner, prepare=prepare)


@pytest.fixture
def bundle(identity_bundle: MakeBundle, monkeypatch: pytest.MonkeyPatch) -> Bundle:
    register("numbers", capturing(modality.get("numbers")), monkeypatch)
    return identity_bundle()


def template(bundle: Bundle) -> Template:
    return Template(np.array([1, 0, 0], np.float32), bundle.version, "numbers", 3, Threshold(0.5, 0.01, 1000))


def test_an_attack_is_not_accepted_although_it_matches(bundle: Bundle) -> None:
    decision = verify(b"1 0 0", template(bundle), model=bundle, detectors=(FewDigits(3),))
    assert decision.score == pytest.approx(1.0)
    assert (decision.matched, decision.accepted) == (True, False)
    assert decision.presentations == (Presentation("few-digits", -2.0, 0.0, ("too many digits: use fewer",)),)
    assert decision.timings_s["presentation:few-digits"] >= 0


def test_bona_fide_and_matching_is_accepted(bundle: Bundle) -> None:
    detectors = (FewDigits(5), FewDigits(9, name="lenient"))
    decision = verify(b"1 0 0", template(bundle), model=bundle, detectors=detectors)
    assert decision.accepted
    assert [item.detector for item in decision.presentations] == ["few-digits", "lenient"]
    assert [item.bona_fide for item in decision.presentations] == [True, True]
    # Bona fide and somebody else is still somebody else.
    assert not verify(b"0 1 0", template(bundle), model=bundle, detectors=detectors).accepted


def test_one_attack_among_several_answers_is_enough(bundle: Bundle) -> None:
    detectors = (FewDigits(9, name="lenient"), FewDigits(3))
    assert not verify(b"1 0 0", template(bundle), model=bundle, detectors=detectors).accepted


def test_without_detectors_nothing_is_asked(bundle: Bundle) -> None:
    decision = verify(b"1 0 0", template(bundle), model=bundle)
    assert decision.presentations == ()
    assert decision.accepted
    assert not any(stage.startswith("presentation") for stage in decision.timings_s)


def test_a_detector_of_another_modality_is_refused_before_the_probe_is_read(bundle: Bundle) -> None:
    with pytest.raises(SettingsError, match="looks at voice samples, this model takes numbers"):
        verify(b"not numbers", template(bundle), model=bundle, detectors=(FewDigits(3, modality="voice"),))


def test_two_detectors_of_one_name_are_refused() -> None:
    with pytest.raises(SettingsError, match="a name of its own"):
        check((FewDigits(3), FewDigits(4)), "numbers")


def test_a_modality_that_keeps_nothing_has_nothing_to_look_at(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    register("numbers", capturing(modality.get("numbers"), keeps=False), monkeypatch)
    with pytest.raises(SettingsError, match="not kept for presentation attack detectors"):
        verify(b"1 0 0", template(bundle), model=bundle, detectors=(FewDigits(3),))
    assert examine((), None, embedding=np.ones(1, np.float32)) == ((), {})


def test_what_a_detector_raises_is_not_swallowed(bundle: Bundle) -> None:
    class Broken:
        name, modality = "broken", "numbers"

        def assess(self, captured: Captured, embedding: Float32) -> Presentation:
            return Presentation(self.name, float("nan"), 0.0)

    detector: PresentationAttackDetector = Broken()
    with pytest.raises(ValueError, match="not a number decides nothing"):
        verify(b"1 0 0", template(bundle), model=bundle, detectors=(detector,))
