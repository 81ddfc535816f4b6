"""Voice while it is being spoken: chunks of every size, progress, early acceptance, and the same result at the end."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import soxr
from hypothesis import given, settings
from hypothesis import strategies as st

import uvsdk
from tests import synthetic_voice
from uvsdk.bundle import Bundle
from uvsdk.bundle.inference import embed
from uvsdk.errors import (
    EnrolmentError,
    NoSpeechError,
    SampleTooLargeError,
    SettingsError,
    ThresholdError,
    UndecodableSampleError,
)
from uvsdk.modality import Capture, Limits
from uvsdk.scoring import Threshold
from uvsdk.stream import CHECKS_S, Progress, VoiceStream

SPEECH = synthetic_voice.utterance(7.0, speaker=1)
CAPTURE = Capture(quality="off")


@functools.cache
def bundle() -> Bundle:
    """A voice model with random weights: what is tested here does not depend on them."""
    pytest.importorskip("torch", reason="making a bundle needs the train extra")
    from uvsdk.training import backbones
    from uvsdk.training.export import export_bundle

    return export_bundle(backbones.get("tdnn").random(0))


@functools.cache
def recorded(rate: int) -> np.ndarray:
    """Two seconds at that rate."""
    return np.asarray(soxr.resample(SPEECH[: 2 * 16_000], 16_000, rate, quality="HQ"), np.float32)


@functools.cache
def template() -> uvsdk.Template:
    samples = [(synthetic_voice.utterance(4.0, 1, text), 16_000) for text in range(3)]
    return uvsdk.enroll("ana", samples, model=bundle(), store=uvsdk.MemoryStore(), capture=CAPTURE).template


def threshold(score: float) -> Threshold:
    return Threshold(score=score, fmr=0.01, trials=0)


def pushed(stream: VoiceStream, pcm: np.ndarray, size: int, rate: int = 16_000) -> list[Progress]:
    return [stream.push(pcm[start : start + size], rate) for start in range(0, len(pcm), size)]


@given(
    sizes=st.lists(st.integers(0, 9_000), min_size=1, max_size=30),
    kind=st.sampled_from([np.float32, np.int16]),
    rate=st.sampled_from([8_000, 16_000, 44_100]),
    wide=st.booleans(),
)
@settings(max_examples=15, deadline=None)
def test_the_result_is_that_of_the_whole(sizes: list[int], kind: type, rate: int, wide: bool) -> None:
    pcm = recorded(rate) if kind is np.float32 else (recorded(rate) * 32767).astype(np.int16)
    pcm = np.stack([pcm, pcm], axis=1) if wide else pcm
    stream = VoiceStream(bundle(), capture=CAPTURE)
    start = 0
    for size in sizes:
        stream.push(pcm[start : start + size], rate)
        start += size
    stream.push(pcm[start:], rate)
    streamed, whole = stream.result(), embed((pcm, rate), bundle(), capture=CAPTURE)
    assert np.array_equal(streamed.embedding, whole.embedding)
    assert streamed.quality == whole.quality


def test_progress_rises_to_a_hundred_and_agrees_with_the_whole() -> None:
    found = pushed(VoiceStream(bundle(), capture=CAPTURE), SPEECH, 1600)
    percents = [progress.percent for progress in found]
    assert percents[0] < 5
    assert percents[-1] == 100.0
    assert max(np.diff([0, *percents])) < 15
    assert min(np.diff(percents)) > -3  # a frame may be thought of otherwise once its surroundings are known
    assert found[-1].duration_s == pytest.approx(7.0)
    whole = embed((SPEECH, 16_000), bundle(), capture=CAPTURE).quality.measured["speech_s"]
    assert found[-1].speech_s == pytest.approx(whole, abs=0.25)
    first_ready = next(progress for progress in found if progress.ready)
    assert 0.5 <= first_ready.speech_s < 0.8


def test_silence_makes_no_progress() -> None:
    stream = VoiceStream(bundle(), capture=CAPTURE)
    last = pushed(stream, np.zeros(32_000, np.float32), 1000)[-1]
    assert (last.percent, last.ready, last.decision) == (0.0, False, None)
    noise = np.random.default_rng(0).normal(scale=0.01, size=32_000).astype(np.float32)
    assert pushed(stream, noise, 1000)[-1].percent == 0.0
    with pytest.raises(NoSpeechError):
        stream.result()


def test_who_matches_is_accepted_at_the_first_length() -> None:
    stream = VoiceStream(bundle(), template(), threshold=threshold(-1.0), capture=CAPTURE)
    found = pushed(stream, SPEECH, 1600)
    decided = [progress for progress in found if progress.decision is not None]
    assert decided[0].speech_s == pytest.approx(CHECKS_S[0], abs=0.15)
    assert decided[0].decision is not None
    assert decided[0].decision.accepted
    # It is final: what is said afterwards does not take it back.
    assert decided[-1].decision is decided[0].decision
    assert stream.decision() is decided[0].decision


def test_who_does_not_is_compared_at_every_length_and_once_more_at_the_end() -> None:
    stream = VoiceStream(bundle(), template(), threshold=threshold(1.0), capture=CAPTURE)
    found = pushed(stream, SPEECH, 1600)
    decisions = {id(progress.decision) for progress in found if progress.decision is not None}
    assert len(decisions) == len(CHECKS_S)
    last = stream.decision()
    assert not last.accepted
    assert (
        last.score
        == uvsdk.verify((SPEECH, 16_000), template(), model=bundle(), threshold=threshold(1.0), capture=CAPTURE).score
    )


def test_a_comparison_that_cannot_be_made_is_advice() -> None:
    clipped = np.clip(SPEECH * np.float32(200), -1, 1)
    stream = VoiceStream(bundle(), template(), threshold=threshold(0.5))
    found = pushed(stream, clipped, 1600)
    assert any("move away from the microphone" in progress.advice for progress in found)
    assert all(progress.decision is None for progress in found)


def test_one_long_chunk_is_compared_once() -> None:
    stream = VoiceStream(bundle(), template(), threshold=threshold(1.0), capture=CAPTURE)
    progress = stream.push(SPEECH, 16_000)
    assert progress.percent == 100.0
    assert progress.decision is not None


def test_enrolment_from_streams() -> None:
    streams = []
    for text in range(3):
        stream = VoiceStream(bundle(), capture=CAPTURE)
        pushed(stream, synthetic_voice.utterance(4.0, 1, text), 1600)
        streams.append(stream)
    made = uvsdk.enroll(
        "ana", [stream.sample for stream in streams], model=bundle(), store=uvsdk.MemoryStore(), capture=CAPTURE
    )
    assert np.array_equal(made.template.embedding, template().embedding)


def test_silence_and_mostly_silence_do_not_enrol() -> None:
    # Picovoice eagle PR #80: they did.
    mostly = np.zeros(8 * 16_000, np.float32)
    mostly[:4_000] = SPEECH[8_000:12_000]
    for pcm in (np.zeros(8 * 16_000, np.float32), mostly):
        with pytest.raises(EnrolmentError, match="0 of 3 samples can be used"):
            uvsdk.enroll("ana", [(pcm, 16_000)] * 3, model=bundle(), store=uvsdk.MemoryStore(), capture=CAPTURE)


def test_what_was_pushed_is_copied() -> None:
    stream = VoiceStream(bundle(), capture=CAPTURE)
    buffer = SPEECH[:48_000].copy()
    stream.push(buffer, 16_000)
    buffer[:] = 0.0  # audio callbacks reuse their buffer
    assert np.array_equal(stream.sample[0], SPEECH[:48_000])


def test_a_stream_ends_at_its_limit_and_keeps_what_it_has() -> None:
    stream = VoiceStream(bundle(), capture=Capture(quality="off", limits=Limits(max_seconds=2.0)))
    stream.push(SPEECH[:32_000], 16_000)
    with pytest.raises(SampleTooLargeError, match="may last 2 s"):
        stream.push(SPEECH[:1], 16_000)
    assert len(stream.sample[0]) == 32_000
    assert stream.result().quality.measured["duration_s"] == 2.0


def test_chunks_are_of_one_kind() -> None:
    stream = VoiceStream(bundle())
    stream.push(SPEECH[:100], 16_000)
    wrong = (
        (SPEECH[:100], 8_000),
        ((SPEECH[:100] * 9).astype(np.int16), 16_000),
        (np.stack([SPEECH[:100]] * 2, axis=1), 16_000),
    )
    for pcm, rate in wrong:
        with pytest.raises(UndecodableSampleError, match="a stream is of one kind"):
            stream.push(pcm, rate)
    with pytest.raises(UndecodableSampleError, match="not finite"):
        stream.push(np.array([np.nan], np.float32), 16_000)
    for pcm in (np.zeros((2, 2, 2), np.float32), np.float32(3) * np.ones(())):
        with pytest.raises(UndecodableSampleError, match="a chunk has shape"):
            stream.push(pcm, 16_000)
    with pytest.raises(UndecodableSampleError, match="sample rates"):
        VoiceStream(bundle()).push(SPEECH[:100], 100)
    assert len(stream.sample[0]) == 100


def test_an_empty_stream() -> None:
    stream = VoiceStream(bundle(), template(), threshold=threshold(0.5))
    assert stream.push(SPEECH[:0], 16_000).percent == 0.0
    for ask in (stream.result, stream.decision):
        with pytest.raises(NoSpeechError, match="nothing was pushed"):
            ask()


def test_settings_that_make_no_sense() -> None:
    for wrong in ((), (3.0, 1.5), (1.5, 1.5), (0.1,)):
        with pytest.raises(SettingsError, match="ascends from"):
            VoiceStream(bundle(), checks_s=wrong)
    stream = VoiceStream(bundle(), capture=CAPTURE)
    stream.push(SPEECH, 16_000)
    with pytest.raises(SettingsError, match="no template"):
        stream.decision()
    with pytest.raises(ThresholdError):
        VoiceStream(bundle(), template(), capture=CAPTURE).push(SPEECH, 16_000)
    with pytest.raises(SettingsError, match="needs a voice bundle, got one for handwriting"):
        VoiceStream(uvsdk.bundle.shipped())


@pytest.mark.parametrize(
    ("chunk", "rate", "message"),
    [
        ([0.0, 0.1], 16_000, "a numpy array, or a tensor, .*, got list"),
        (None, 16_000, "got NoneType"),
        (np.zeros(()), 16_000, r"got shape \(\)"),
        (np.zeros((4, 4, 4)), 16_000, r"got shape \(4, 4, 4\)"),
        (np.zeros((100, 9), np.float32), 16_000, "at most 8 channels"),
        (np.full(99, np.nan), 16_000, "not finite"),
        (np.full(99, np.inf, np.float32), 16_000, "not finite"),
        (np.full(99, 1e38, np.float32), 16_000, "divide by the integer range"),
        (np.zeros(99, np.uint16), 16_000, "got uint16"),
        (np.zeros(99, np.float32), 16_000.0, "whole number of Hz"),
        (np.zeros(99, np.float32), "16000", "whole number of Hz"),
        (np.zeros(99, np.float32), None, "whole number of Hz"),
        (np.zeros(99, np.float32), True, "whole number of Hz"),
        (np.zeros(99, np.float32), 0, "sample rates from"),
        (np.zeros(99, np.float32), -16_000, "sample rates from"),
    ],
)
def test_a_chunk_that_is_none(chunk: object, rate: object, message: str) -> None:
    stream = VoiceStream(bundle(), capture=CAPTURE)
    with pytest.raises(UndecodableSampleError, match=message):
        stream.push(chunk, rate)  # type: ignore[arg-type]
    assert stream.push(SPEECH[:8000], 16_000).duration_s == 0.5


@pytest.mark.parametrize("empty", [(0,), (0, 2), (2, 0), (0, 0)])
def test_an_empty_chunk_changes_nothing(empty: tuple[int, ...]) -> None:
    stream = VoiceStream(bundle(), capture=CAPTURE)
    for _ in range(2):
        stream.push(np.zeros(empty, np.float32), 16_000)
        stream.push(SPEECH[:8000], 16_000)
    assert np.array_equal(stream.sample[0], np.tile(SPEECH[:8000], 2))


def test_chunks_in_any_layout_are_one_recording() -> None:
    stereo = np.stack([SPEECH, 0.5 * SPEECH], axis=1)
    forms = [
        stereo,
        np.asfortranarray(stereo),
        np.repeat(stereo, 2, axis=0)[::2],
        stereo.T,  # as torchaudio has it: (channels, n)
        stereo.astype(">f4").astype("<f4"),
    ]
    forms[1].flags.writeable = False
    samples = []
    for form in forms:
        stream = VoiceStream(bundle(), capture=CAPTURE)
        parts = np.array_split(form, 5, axis=int(form.shape[0] == 2))
        for part in parts:
            stream.push(part, 16_000)
        samples.append(stream.sample[0])
    assert all(np.array_equal(sample, stereo) for sample in samples)
