"""Training views under other conditions: what each change does to frames and chips, and who may ask for it."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import modality_graphs, synthetic_voice
from uvsdk import modality
from uvsdk.errors import SettingsError, UnknownNameError, WireError
from uvsdk.federation import recipes
from uvsdk.federation.messages import TrainingConfig
from uvsdk.modality.contract import Modality
from uvsdk.modality.face.augmentation import FaceAugmentation
from uvsdk.modality.face.augmentation import changed as changed_face
from uvsdk.modality.voice import augmentation, fbank, frames, mel
from uvsdk.modality.voice.augmentation import NOISES, VoiceAugmentation
from uvsdk.modality.voice.frames import Framing

GE2E = {"minimum_speech_s": 0.5}
CAMPPLUS = GE2E | {"mels": 80, "bank": "kaldi", "scale": "log", "mean": "utterance", "view_frames": 120}
LOG_MEL = GE2E | {"mels": 40, "scale": "log", "mean": "none"}
KINDS = [GE2E, CAMPPLUS, LOG_MEL]
VOICE = modality.get("voice")
SPEECH = synthetic_voice.utterance(3.0, speaker=1)
ALL = {"noise": 1.0, "rooms": 1.0, "telephone": 1.0, "speed": 1.0, "time_mask": 0.3, "frequency_mask": 0.3}
CHIP = np.random.default_rng(0).integers(0, 256, (112, 112, 3)).astype(np.uint8)
FACE = {"crop": 0.2, "colour": 0.4, "blur": 1.0, "small": 1.0, "jpeg": 1.0}


def prepared(preprocessing: dict[str, object]) -> np.ndarray:
    return VOICE.prepare((SPEECH, 16_000), modality_graphs.loaded("voice", preprocessing)).features


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def ge2e_frames(pcm: np.ndarray) -> np.ndarray:
    return mel.spectrogram(pcm, sample_rate=16_000, window=400, hop=160, mels=40).astype(np.float64)


def kaldi_frames(pcm: np.ndarray) -> np.ndarray:
    return np.exp(fbank.fbank(pcm, sample_rate=16_000, window=400, hop=160, mels=80).astype(np.float64))


# Settings


@pytest.mark.parametrize(
    ("kind", "values", "says"),
    [
        ("voice", {"noise": 1.1}, r"noise .* lies in \[0, 1\]"),
        ("voice", {"noise": -0.1}, "noise"),
        ("voice", {"noise": "much"}, "finite number"),
        ("voice", {"noise": True}, "finite number"),
        ("voice", {"rooms": float("nan")}, "finite number"),
        ("voice", {"time_mask": 0.6}, r"\[0, 0.5\]"),
        ("voice", {"noise": 0.5, "snr_db_lowest": 30.0}, "snr_db_lowest"),
        ("voice", {"t60_s": 0.0}, "t60_s"),
        ("voice", {"nothing": 1}, "unexpected keyword"),
        ("voice", {"jpeg": 0.5}, "unexpected keyword"),
        ("face", {"crop": 0.4}, r"crop .* lies in \[0, 0.3\]"),
        ("face", {"blur_pixels": 0.0}, "blur_pixels"),
        ("face", {"jpeg_quality": 99}, "jpeg_quality"),
        ("face", {"jpeg_quality": 30.5}, "jpeg_quality"),
        ("face", {"colour": float("inf")}, "finite number"),
        ("handwriting", {"noise": 0.1}, "no augmentation of this modality"),
        ("voice", [0.1], "by name"),
    ],
)
def test_settings_that_are_refused(kind: str, values: object, says: str) -> None:
    with pytest.raises(SettingsError, match=says):
        TrainingConfig("clinic", kind, "ge2e", "fedaws", augmentation=values)  # type: ignore[arg-type]


def test_a_modality_that_is_unknown() -> None:
    with pytest.raises(UnknownNameError):
        TrainingConfig("clinic", "gait", "ge2e", "fedaws", augmentation={"noise": 0.1})


def test_without_augmentation_a_configuration_reads_as_before_there_was_any() -> None:
    plain = TrainingConfig("clinic", "voice", "ge2e", "fedaws")
    assert "augmentation" not in plain.to_json()
    assert TrainingConfig.from_json(plain.to_json()) == plain


def test_augmentation_travels_and_is_part_of_what_is_approved() -> None:
    plain = TrainingConfig("clinic", "voice", "ge2e", "fedaws")
    asked = dataclasses.replace(plain, augmentation={"noise": 0.5, "snr_db_lowest": 5})
    assert TrainingConfig.from_json(asked.to_json()) == asked
    assert asked.digest() != plain.digest()
    named = {"deployment": "clinic", "backbone": "ge2e", "algorithm": "fedaws", "recipe": "voice-head"}
    assert recipes.configured({**named, "augmentation": {"telephone": 0.5}}).augmentation == {"telephone": 0.5}
    with pytest.raises((WireError, SettingsError)):
        TrainingConfig.from_json(asked.to_json().replace("noise", "nois"))


def test_a_modality_without_augmentation_says_so() -> None:
    numbers = Modality(
        prepare=VOICE.prepare,
        views=lambda features, preprocessing: features[None],
        crop=lambda features, preprocessing, rng: features,
    )
    assert numbers.training_view(np.ones(3, np.float32), {}, rng()).tolist() == [1, 1, 1]
    with pytest.raises(SettingsError, match="no augmentation"):
        numbers.training_view(np.ones(3, np.float32), {}, rng(), augmentation={"noise": 1.0})


# Frames


@pytest.mark.parametrize("preprocessing", KINDS, ids=["power", "kaldi", "log"])
def test_views_have_the_shape_of_crops_and_follow_the_generator(preprocessing: dict[str, object]) -> None:
    features = prepared(preprocessing)
    expected = VOICE.crop(features, preprocessing, rng())
    once = VOICE.training_view(features, preprocessing, rng(3), augmentation=ALL)
    again = VOICE.training_view(features, preprocessing, rng(3), augmentation=ALL)
    other = VOICE.training_view(features, preprocessing, rng(4), augmentation=ALL)
    assert (once.shape, once.dtype) == (expected.shape, np.float32)
    assert np.isfinite(once).all()
    assert np.array_equal(once, again)
    assert not np.array_equal(once, other)
    assert np.array_equal(VOICE.training_view(features, preprocessing, rng()), expected), "off: the crop, and its draws"
    assert np.array_equal(features, prepared(preprocessing)), "what is stored stays"


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 60), st.integers(0, 1 << 30), st.sampled_from(range(len(KINDS))), st.floats(-6.0, 3.0))
def test_any_frames_give_numbers(count: int, seed: int, kind: int, level: float) -> None:
    preprocessing = KINDS[kind]
    framing = Framing.read(preprocessing)
    rows = rng(seed).standard_normal((count, framing.mels)).astype(np.float32)
    features = np.exp(rows) * np.float32(10.0**level) if framing.scale == "power" else rows
    view = VOICE.training_view(features, preprocessing, rng(seed), augmentation=ALL)
    assert view.shape == (framing.view_frames, framing.mels)
    assert np.isfinite(view).all()


@pytest.mark.parametrize("preprocessing", KINDS, ids=["power", "kaldi", "log"])
def test_power_and_back_is_the_same(preprocessing: dict[str, object]) -> None:
    features, framing = prepared(preprocessing), Framing.read(preprocessing)
    back = augmentation.from_power(augmentation.to_power(features, framing), framing)
    assert back == pytest.approx(features, abs=1e-3)


def test_noise_has_the_power_that_was_asked_for() -> None:
    framing = Framing.read(GE2E)
    quiet = np.full((4000, 40), 1e-4)
    for kind in NOISES:
        noise = augmentation.noisy(quiet, framing, kind, 10.0, rng()) - quiet
        weights = augmentation._weights(framing)
        # 10 dB under is a tenth; phases cancel on the whole.
        assert (noise @ weights).mean() == pytest.approx(0.1 * (quiet @ weights).mean(), rel=0.1), kind


@pytest.mark.parametrize(
    ("preprocessing", "heard"), [(GE2E, ge2e_frames), (CAMPPLUS, kaldi_frames)], ids=["power", "kaldi"]
)
def test_noise_in_frames_is_like_noise_in_sound(preprocessing: dict[str, object], heard: object) -> None:
    """Band by band the mean and the spread of the logarithms, speech and white noise 5 dB below it."""
    framing = Framing.read(preprocessing)
    power = heard(SPEECH)  # type: ignore[operator]
    level = np.sqrt(np.mean(SPEECH**2) * 10**-0.5)
    mixed = SPEECH + level * rng(1).standard_normal(len(SPEECH)).astype(np.float32)
    expected = np.log(heard(mixed) + 1e-9)  # type: ignore[operator]
    got = np.log(augmentation.noisy(power, framing, "white", 5.0, rng(2)) + 1e-9)
    assert got.mean(axis=0) == pytest.approx(expected.mean(axis=0), abs=0.35)
    assert np.abs(got.mean(axis=0) - expected.mean(axis=0)).mean() < 0.12
    assert got.std(axis=0).mean() == pytest.approx(expected.std(axis=0).mean(), rel=0.1)


def test_a_room_leaves_a_tail_of_the_power_and_length_that_were_asked_for() -> None:
    framing = Framing.read(GE2E)
    click = np.zeros((300, 40))
    click[0] = 1.0
    tails = [augmentation.reverberant(click, framing, 0.5, 0.5, rng(seed))[1:] for seed in range(20)]
    tail = np.mean(tails, axis=(0, 2))
    # The tail falls by 60 dB in 50 frames: by half of its power in 2.5 of them.
    assert tail.sum() == pytest.approx(0.5 * np.exp(-6 * np.log(10) / 50), rel=0.1)
    assert np.log10(tail[:10].mean() / tail[10:20].mean()) == pytest.approx(6 / 50 * 10, abs=0.15)


def test_a_telephone_carries_nothing_above_its_half_and_rounds_by_37_db() -> None:
    framing = Framing.read(GE2E)
    centres = augmentation._centres(framing)
    power = np.ones((2000, 40))
    line = augmentation.telephoned(power, framing, rng(), filtered=False)
    assert not line[:, centres > 4000].any()
    assert line[:, centres < 3500].mean() == pytest.approx(1.0, rel=1e-2)
    filtered = augmentation.telephoned(power, framing, rng(), filtered=True)
    assert filtered[:, 0].mean() < 0.1
    assert filtered[:, (centres > 500) & (centres < 3000)].mean() == pytest.approx(1.0, rel=1e-2)


def test_what_is_spoken_twice_as_fast_is_half_as_long_and_an_octave_higher() -> None:
    framing = Framing.read(GE2E)
    times = np.arange(16_000) / 16_000
    low, high = (ge2e_frames(np.sin(2 * np.pi * hz * times).astype(np.float32)) for hz in (500, 1000))
    sped = augmentation.faster(low, framing, 2.0)
    assert len(sped) == round(len(low) / 2)
    assert abs(int(sped[20].argmax()) - int(high[20].argmax())) <= 1


def test_masks_are_as_large_as_allowed_and_silent() -> None:
    framing = Framing.read(CAMPPLUS)
    asked = VoiceAugmentation(time_mask=0.25, frequency_mask=0.1)
    longest = 0
    for seed in range(50):
        view = augmentation._masked(np.ones((120, 80), np.float32), framing, asked, rng(seed))
        frames_, bands = int((view == 0).all(axis=1).sum()), int((view == 0).all(axis=0).sum())
        assert (frames_ <= 30, bands <= 8) == (True, True)
        longest = max(longest, frames_)
    assert longest > 20
    silent = augmentation._masked(np.ones((160, 40), np.float32), Framing.read(LOG_MEL), asked, rng(1))
    assert silent.min() == pytest.approx(np.log(frames.LOG_FLOOR))


def test_frames_of_another_model_are_refused() -> None:
    from uvsdk.errors import BundleError

    with pytest.raises(BundleError):
        VOICE.training_view(np.zeros((9, 3), np.float32), GE2E, rng(), augmentation={"noise": 1.0})
    with pytest.raises(BundleError):
        modality.get("face").training_view(CHIP[:9], {"size": 112}, rng(), augmentation={"blur": 1.0})


# Chips


def test_a_chip_keeps_its_shape_and_follows_the_generator() -> None:
    face = modality.get("face")
    once = face.training_view(CHIP, {"size": 112}, rng(3), augmentation=FACE)
    again = face.training_view(CHIP, {"size": 112}, rng(3), augmentation=FACE)
    assert (once.shape, once.dtype) == ((3, 112, 112), np.float32)
    assert (once.min() >= 0, once.max() <= 255) == (True, True)
    assert np.array_equal(once, again)
    assert not np.array_equal(once, face.training_view(CHIP, {"size": 112}, rng(4), augmentation=FACE))


def test_a_chip_without_a_change_stays() -> None:
    assert np.array_equal(changed_face(CHIP, FaceAugmentation(), rng()), CHIP)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 1 << 30), st.integers(8, 40))
def test_chips_of_any_size_give_chips(seed: int, side: int) -> None:
    chip = rng(seed).integers(0, 256, (side, side, 3)).astype(np.uint8)
    made = changed_face(chip, FaceAugmentation(**FACE), rng(seed))  # type: ignore[arg-type]
    assert (made.shape, made.dtype) == (chip.shape, np.uint8)
