"""The conditions of the reproduction: rooms by hand, levels, and codecs that keep their place."""

from __future__ import annotations

import math
import shutil

import numpy as np
import pytest

from examples.reproduce.conditions import codecs, embedded, rooms, speakers
from examples.reproduce.conditions.conditions import CONDITIONS, Clip, hum, loudspeaker, overdriven
from examples.reproduce.conditions.embedded import Rows
from examples.reproduce.conditions.guarded import decided
from examples.reproduce.conditions.models import MEASURED
from uvsdk.arrays import Float32
from uvsdk.evaluation import calibrating
from uvsdk.modality.voice import MODALITY
from uvsdk.scoring.conditions import conditions_of

RATE = codecs.RATE


def voice(seed: int = 0) -> Float32:
    """A second of noise in the band of a telephone, louder and softer in turn."""
    rng = np.random.default_rng(seed)
    spectrum = np.fft.rfft(rng.standard_normal(RATE))
    spectrum[:400], spectrum[3_000:] = 0, 0
    sound = np.fft.irfft(spectrum, RATE) * (1 + np.sin(2 * np.pi * 4 * np.arange(RATE) / RATE))
    return np.asarray(0.1 * sound / np.std(sound), np.float32)


def clips() -> list[Clip]:
    return [Clip(f"{index}", f"speaker {index}", voice(index)) for index in range(3)]


def test_the_first_reflections_are_where_a_ruler_puts_them() -> None:
    # 1 m between mouth and microphone, both 1 m over the floor of a room whose other walls are far.
    room = rooms.Room((40.0, 40.0, 40.0), 1.0, (20.0, 20.0, 1.0), (21.0, 20.0, 1.0))
    heard = np.abs(rooms.response(room, RATE))
    floor = round((math.sqrt(1 + 2**2) - 1) / rooms.SPEED_OF_SOUND * RATE)  # the image lies 2 m below
    assert heard[0] == pytest.approx(1.0, abs=0.05)
    assert np.argmax(heard[10:400]) + 10 == floor
    assert heard[floor] == pytest.approx(rooms.reflection(room) / math.sqrt(5), abs=0.05)


def test_sound_falls_by_sixty_decibels_in_the_rooms_time() -> None:
    room = rooms.Room((6.0, 5.0, 3.0), 0.5, (2.0, 2.0, 1.5), (4.0, 3.0, 1.2))
    power = np.square(rooms.response(room, RATE))
    remaining = np.cumsum(power[::-1])[::-1]
    fall = 10 * np.log10(remaining / remaining[0])
    # From -5 to -25 dB, twenty decibels, takes a third of the time for sixty (ISO 3382's T20). Eyring's walls are
    # those of a diffuse field, which a box's is not: within a third.
    third = (np.argmax(fall < -25) - np.argmax(fall < -5)) / RATE
    assert 3 * third == pytest.approx(0.5, rel=0.35)


def test_a_room_keeps_the_level() -> None:
    pcm = voice()
    far = rooms.heard(pcm, RATE, rooms.Room((5.0, 4.0, 2.7), 0.4, (1.0, 1.3, 1.5), (3.9, 2.4, 1.2)))
    assert far.shape == pcm.shape
    assert float(np.std(far)) == pytest.approx(float(np.std(pcm)), rel=0.01)


def test_the_mains_hum_at_fifty_hertz_and_above() -> None:
    spectrum = np.abs(np.fft.rfft(hum(RATE, np.random.default_rng(0))))
    assert np.sort(np.argsort(spectrum)[-10:]).tolist() == list(range(50, 501, 50))
    assert spectrum[50] / spectrum[100] == pytest.approx(2.0, rel=0.01)


def test_loudspeakers_and_overdriven_microphones_limit_peaks() -> None:
    pcm = voice()
    assert float(np.mean(np.abs(overdriven(pcm)) >= 1.0)) > 0.3
    played = loudspeaker(pcm)
    assert np.abs(played).max() / np.std(played) < np.abs(pcm).max() / np.std(pcm)


def test_there_are_twenty_four_conditions_and_none() -> None:
    assert len(CONDITIONS) == 25
    recordings = clips()
    assert all(made is clip.pcm for made, clip in zip(CONDITIONS["clean"](recordings), recordings, strict=True))
    for name in ("babble 10 dB", "hum 0 dB", "office, 3 m", "narrow microphone"):
        one, other = CONDITIONS[name](recordings), CONDITIONS[name](recordings)
        assert all(np.array_equal(a, b) and a.dtype == np.float32 for a, b in zip(one, other, strict=True))


@pytest.mark.skipif(shutil.which("ffmpeg") is None, reason="ffmpeg is not installed")
@pytest.mark.parametrize("name", ["G.711 mu-law", "G.711 A-law", "GSM", "Opus 24 kbit/s", "MP3 32 kbit/s"])
def test_what_comes_out_of_a_codec_lies_where_it_went_in(name: str) -> None:
    recordings = clips()
    try:
        received = CONDITIONS[name](recordings)
    except codecs.MissingToolError as error:
        pytest.skip(str(error))
    for clip, pcm in zip(recordings, received, strict=True):
        assert pcm.shape == clip.pcm.shape
        match = np.correlate(pcm, clip.pcm[200:-200], "valid")  # shifts from -200 to 200
        assert abs(int(np.argmax(match)) - 200) <= 3
        assert np.corrcoef(pcm, clip.pcm)[0, 1] > 0.4


def test_without_ffmpeg_the_reason_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(codecs.MissingToolError, match="not installed"):
        CONDITIONS["GSM"](clips())


def pair() -> speakers.Pair:
    own, other = voice(1), voice(2)
    return speakers.Pair(own, np.zeros(0, np.float32), other, np.random.default_rng(0))


def test_every_kind_of_recording_of_one_and_two_people() -> None:
    made = {kind: make(pair()) for kind, make in {**speakers.ALONE, **speakers.TWO, **speakers.AT_ONCE}.items()}
    assert len(made.pop("one, two recordings")) == 0  # there is one alone
    assert len(made.pop("one, a second of pause")) == 2 * RATE
    assert all(len(pcm) == RATE for pcm in made.values())
    own, other = pair().own, pair().other
    four = made["four fifths, one fifth"]
    assert np.array_equal(four, np.concatenate([own[:12_800], other[12_800:]]))
    a_while = made["at once for three tenths"]
    changed = np.flatnonzero(a_while != own)
    assert 4_800 <= changed.min() <= changed.max() < 9_600
    softer = made["at once, the other 10 dB softer"] - own
    assert 10 * np.log10(np.mean(own**2) / np.mean(softer**2)) == pytest.approx(10, abs=0.1)


def test_an_interval_over_people() -> None:
    """Ten people of four recordings, of one of whom all are refused: a tenth, none to three tenths of the people."""
    people = np.arange(10).repeat(4)
    low, high = speakers.interval(people == 3, people)
    assert low == 0.0
    assert high == pytest.approx(0.3, abs=0.101)
    assert speakers.interval(people >= 0, people)[1] == 1.0


def test_the_halves_share_nobody_and_are_about_halves() -> None:
    chosen = [speakers.half_of(str(person)) == "choose" for person in range(1_000)]
    assert 400 < sum(chosen) < 600


def rows(owners: list[int], seed: int, *, speech_s: float, axis: int = 0, shift: float = 0.0) -> Rows:
    """Unit rows around their person, all of them moved along an axis, with so many seconds of speech, more or less."""
    rng, people = np.random.default_rng(seed), np.random.default_rng(9).normal(size=(1 + max(owners), 32))
    people[:, :8] *= 0.1  # nobody differs much there, so whoever does is foreign
    made = people[owners] + rng.normal(0, 0.2, (len(owners), 32)) + shift * np.eye(32)[axis]
    measured = np.full((len(owners), len(MEASURED)), np.nan)
    for name, values in {"speech_s": speech_s, "snr_db": 20.0, "bandwidth_hz": 6_000.0}.items():
        measured[:, MEASURED.index(name)] = values * rng.uniform(0.8, 1.2, len(owners))
    return Rows(np.asarray(made / np.linalg.norm(made, axis=1, keepdims=True), np.float32), measured)


def test_many_trials_are_decided_as_one_is() -> None:
    owners = [person for person in range(60) for _ in range(2)]
    recordings = [Clip(f"{place}", f"{owner:02}", np.zeros(1, np.float32)) for place, owner in enumerate(owners)]
    names = sorted({clip.speaker for clip in recordings})
    clean, short = rows(owners, 0, speech_s=5.0), rows(owners, 1, speech_s=2.0, shift=0.3)
    seen = embedded.observations(recordings, clean, {"short": short}, names)
    calibration = calibrating.fit(seen, model_version="a model", source="nobody").calibration
    # Foreign, shorter than anything that was seen, and neither.
    probes = (
        rows(owners, 2, speech_s=3.0, axis=5, shift=30.0),
        rows(owners, 3, speech_s=0.5),
        rows(owners, 4, speech_s=4.0),
    )
    first, second = np.array([0, 3, 17, 40]), np.array([1, 90, 16, 41])
    for probe, outside in zip(probes, (True, True, False), strict=True):
        found = decided(calibration, clean, probe, first, second)
        for place, (one, other) in enumerate(zip(first.tolist(), second.tolist(), strict=True)):
            pair = clean.embeddings[one], probe.embeddings[other]
            where = [
                conditions_of(side.qualities(index), MODALITY.conditions)
                for side, index in ((clean, one), (probe, other))
            ]
            placement = calibration.place(*pair, template=where[0], probe=where[1])
            assert found.outside[place] == (placement.verdict == "outside")
            assert found.outside[place] == outside
            for ratio, rise in ((found.ratios, 0.0), (found.guarded, placement.rise)):
                expected = calibration.llr(*pair, template=where[0], probe=where[1], rise=rise)
                assert ratio[place] == pytest.approx(expected, abs=1e-9)
