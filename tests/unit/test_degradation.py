"""Worse copies of samples, measured for what they claim to be."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from uvsdk.arrays import Float32
from uvsdk.modality import get
from uvsdk.modality.face.degradation import Photo, worse_photo
from uvsdk.modality.voice.degradation import Noise, Recording, hiss, worse_recording

RATE = 16_000


def tone(seconds: float, hertz: float = 440.0, rate: int = RATE) -> Float32:
    return (0.3 * np.sin(2 * np.pi * hertz * np.arange(round(seconds * rate)) / rate)).astype(np.float32)


def rng() -> np.random.Generator:
    return np.random.default_rng(7)


def test_a_cut_keeps_seconds_of_speech() -> None:
    pcm = tone(10.0)
    worse, rate = worse_recording(pcm, RATE, Recording(speech_s=3.0), share=0.75, rng=rng())
    assert (len(worse), rate) == (4 * RATE, RATE)  # 3 s of speech where three quarters are speech
    whole, _ = worse_recording(pcm, RATE, Recording(speech_s=30.0), rng=rng())
    assert whole is pcm
    # Hardly any speech at all does not ask for an hour.
    assert len(worse_recording(pcm, RATE, Recording(speech_s=1.0), share=0.0, rng=rng())[0]) == 5 * RATE


@pytest.mark.parametrize("noise", ["white", "pink"])
@pytest.mark.parametrize("snr_db", [0.0, 10.0, 20.0])
def test_noise_lies_so_many_decibels_under_the_sound(noise: Noise, snr_db: float) -> None:
    pcm = tone(2.0)
    worse, _ = worse_recording(pcm, RATE, Recording(snr_db=snr_db, noise=noise), rng=rng())
    added = worse.astype(np.float64) - pcm
    # Little is clipped at these levels: a few hundredths of a decibel.
    assert 10 * np.log10(np.mean(pcm.astype(np.float64) ** 2) / np.mean(added**2)) == pytest.approx(snr_db, abs=0.2)


def test_pink_noise_falls_three_decibels_an_octave() -> None:
    power = np.abs(np.fft.rfft(hiss(1 << 16, "pink", rng()))) ** 2
    low, high = power[1000:2000].mean(), power[8000:16000].mean()  # three octaves apart
    assert 10 * np.log10(low / high) == pytest.approx(9.0, abs=0.7)


def test_babble_is_of_others_alone() -> None:
    pcm = tone(1.0)
    alone, _ = worse_recording(pcm, RATE, Recording(snr_db=10.0, noise="babble"), rng=rng())
    assert alone is pcm
    worse, _ = worse_recording(pcm, RATE, Recording(snr_db=10.0, noise="babble"), rng=rng(), voices=[tone(0.25, 700.0)])
    spectrum = np.abs(np.fft.rfft(worse))
    assert np.argsort(spectrum)[-2:].tolist() == [700, 440]  # the voice is repeated, ten decibels down


def test_a_telephone_has_half_the_band() -> None:
    high = tone(1.0, 6_000.0) + tone(1.0, 1_000.0)
    worse, rate = worse_recording(high, RATE, Recording(rate=8_000), rng=rng())
    assert rate == 8_000
    assert len(worse) == pytest.approx(8_000, abs=2)
    assert np.argmax(np.abs(np.fft.rfft(worse))) == pytest.approx(1_000, abs=2)
    assert float(np.std(worse)) == pytest.approx(0.3 / np.sqrt(2), rel=0.02)  # what lay above is gone
    same, rate = worse_recording(high, 8_000, Recording(rate=8_000), rng=rng())
    assert same is high


@pytest.mark.parametrize("coding_db", [3.0, 6.0, 12.0])
def test_a_coders_noise_follows_the_voice(coding_db: float) -> None:
    pcm = tone(20.0, 1_000.0, 8_000) * (np.arange(160_000) < 80_000)
    worse, rate = worse_recording(pcm, 8_000, Recording(coding_db=coding_db), rng=rng())
    assert (len(worse), rate) == (len(pcm), 8_000)
    added = worse.astype(np.float64) - pcm
    heard = slice(400, 79_600)  # more than a window from its ends
    assert 10 * np.log10(np.mean(pcm[heard] ** 2) / np.mean(added[heard] ** 2)) == pytest.approx(coding_db, abs=0.2)
    assert not added[80_400:].any()  # none where nobody speaks
    spectrum = np.abs(np.fft.rfft(added[:80_000])) ** 2  # one bin is 0.1 Hz
    assert spectrum[8_000:12_000].sum() > 0.95 * spectrum.sum()


def test_a_coder_without_noise_gives_back_what_it_got() -> None:
    pcm = tone(1.01)  # not a whole number of windows
    worse, _ = worse_recording(pcm, RATE, Recording(coding_db=200.0), rng=rng())
    assert np.allclose(worse, pcm, atol=1e-6)


def test_silence_stays_silent() -> None:
    silence = np.zeros(RATE, np.float32)
    for recording in (Recording(snr_db=10.0), Recording(coding_db=6.0)):
        worse, _ = worse_recording(silence, RATE, recording, rng=rng())
        assert np.array_equal(worse, silence)


def test_the_same_seed_makes_the_same_copy() -> None:
    make = lambda: worse_recording(tone(4.0), RATE, Recording(1.0, 8_000, 10.0, "pink"), rng=rng())[0]  # noqa: E731
    assert np.array_equal(make(), make())


def test_photos_shrink_and_blur() -> None:
    board = Image.fromarray(np.kron(np.indices((20, 20)).sum(0) % 2, np.ones((10, 10))).astype(np.uint8) * 255)
    photo = board.convert("RGB")
    assert worse_photo(photo, 100.0, Photo(face_pixels=50.0)).size == (100, 100)
    assert worse_photo(photo, 40.0, Photo(face_pixels=50.0)) is photo  # never made larger
    assert worse_photo(photo, 100.0, Photo()) is photo
    blurred = worse_photo(photo, 100.0, Photo(blur=0.05))
    assert blurred.size == photo.size
    assert np.asarray(blurred).std() < 0.8 * np.asarray(photo).std()


def test_samples_of_other_modalities_have_no_copies() -> None:
    assert get("handwriting").worsen is None
