"""Our numpy front ends, and sound as torchaudio gives it, against torchaudio itself."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
import torchaudio

from tests import modality_graphs, synthetic_voice
from uvsdk.errors import UndecodableSampleError
from uvsdk.modality import Limits, get
from uvsdk.modality.voice import audio, fbank, mel

SPEECH = synthetic_voice.utterance(2.0, speaker=1)
NOISE = np.random.default_rng(0).normal(0.0, 0.1, 16_123).astype(np.float32)


@pytest.mark.parametrize("pcm", [SPEECH, NOISE], ids=["speech", "noise"])
def test_mel_power_is_that_of_torchaudio(pcm: np.ndarray) -> None:
    """As GE2E hears it: librosa's mels."""
    theirs = torchaudio.transforms.MelSpectrogram(
        sample_rate=16_000, n_fft=400, hop_length=160, n_mels=40, norm="slaney", mel_scale="slaney", pad_mode="constant"
    )
    expected = theirs(torch.from_numpy(pcm)).T.numpy()
    got = mel.spectrogram(pcm, sample_rate=16_000, window=400, hop=160, mels=40)
    assert got.shape == expected.shape
    assert np.abs(got - expected).max() < 2e-5 * expected.max()
    assert np.log(got + 1e-6) == pytest.approx(np.log(expected + 1e-6), abs=2e-3)


@pytest.mark.parametrize("pcm", [SPEECH, NOISE], ids=["speech", "noise"])
def test_kaldi_energies_are_those_of_torchaudio(pcm: np.ndarray) -> None:
    """As CAM++ hears it; our frames are centred, Kaldi's begin with the sound."""
    padded = torch.from_numpy(np.pad(pcm, 200))[None]
    expected = torchaudio.compliance.kaldi.fbank(
        padded, sample_frequency=16_000, num_mel_bins=80, frame_length=25.0, frame_shift=10.0, dither=0.0
    ).numpy()
    got = fbank.fbank(pcm, sample_rate=16_000, window=400, hop=160, mels=80)
    assert got.shape == expected.shape
    # Bands of digital silence hold the rounding of the transform, which is another one.
    heard = expected > np.log(1e-5)
    assert got[heard] == pytest.approx(expected[heard], abs=5e-3)
    assert np.abs(got - expected).max() < 0.2


@pytest.mark.parametrize("kind", [torch.float32, torch.float64, torch.float16, torch.int16, torch.int32, torch.uint8])
def test_tensors_of_every_kind(kind: torch.dtype) -> None:
    pcm = torch.from_numpy(SPEECH)
    if not kind.is_floating_point:
        whole = {torch.int16: 32767, torch.int32: 2**31 - 1, torch.uint8: 127}[kind]
        pcm = pcm * whole + (128 if kind == torch.uint8 else 0)
    got, rate = audio.decode((pcm.to(kind)[None], 16_000), Limits())
    assert (rate, got.dtype) == (16_000, np.float32)
    assert got == pytest.approx(SPEECH, abs=0.02 if kind == torch.uint8 else 1e-3)


def test_a_tensor_gives_the_features_of_its_array() -> None:
    bundle = modality_graphs.loaded("voice", {"minimum_speech_s": 0.5})
    voice = get("voice")
    stereo = torch.from_numpy(np.stack([SPEECH, SPEECH]))
    expected = voice.prepare((SPEECH, 16_000), bundle).features
    assert np.array_equal(voice.prepare((stereo, 16_000), bundle).features, expected)


def test_what_torchaudio_loads_is_a_sample(tmp_path: Path) -> None:
    path = tmp_path / "speech.wav"
    soundfile.write(path, SPEECH, 16_000)
    try:
        loaded = torchaudio.load(str(path))
    except (ImportError, RuntimeError) as error:
        pytest.skip(f"torchaudio.load needs torchcodec and FFmpeg: {error}")
    assert audio.decode(loaded, Limits())[0] == pytest.approx(audio.decode(path, Limits())[0], abs=1e-6)


@pytest.mark.parametrize(
    ("tensor", "says"),
    [
        (torch.full((1, 16_000), torch.nan), "not finite"),
        (torch.zeros((1, 16_000), requires_grad=True), "detach"),
        (torch.zeros((1, 16_000), dtype=torch.bfloat16), "float"),
        (torch.zeros((1, 16_000), dtype=torch.complex64), "complex64"),
        (torch.zeros((1, 16_000), device="meta"), "numpy cannot read"),
        (torch.zeros((100, 16_000)), "at most 8 channels"),
    ],
)
def test_tensors_that_are_no_sound(tensor: torch.Tensor, says: str) -> None:
    with pytest.raises(UndecodableSampleError, match=says):
        audio.decode((tensor, 16_000), Limits())
