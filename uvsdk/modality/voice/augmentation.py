"""Training views of mel frames as another room, noise or line would have given them.

A device keeps mel frames and no recording, so this works on frames; how near it comes to the same done to the recording
is measured in ``examples/reproduce/augmentation``. Noise is made as sound and goes through the one front end; its power
is added to that of the speech, with the term that the phases of two sounds leave between them. A room is a tail of
decaying power behind every frame. A telephone takes the bands away that it does not carry, and rounds the others as
G.711 does. Frames less their mean lack the loudness of each band: the long-term average of speech stands for it.

Source of the masks: Park et al. 2019, SpecAugment; of the average speech: Byrne et al. 1994.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Final

import numpy as np

from uvsdk.arrays import Array, Float32, Float64
from uvsdk.errors import SettingsError
from uvsdk.modality.contract import Preprocessing
from uvsdk.modality.voice import fbank, frames, mel
from uvsdk.modality.voice.frames import Framing

NOISES: Final = ("white", "pink", "hum", "murmur")
"""``murmur`` has the spectrum of speech and rises and falls as syllables do; ``hum`` is of mains, on pink noise."""

_SHARES: Final = ("noise", "rooms", "telephone", "speed", "time_mask", "frequency_mask")
# Hz -> dB in the third of an octave around it, for men and women together.
_AVERAGE_SPEECH: Final = (
    (63, 38.6), (80, 43.5), (100, 54.4), (125, 57.7), (160, 56.8), (200, 60.2), (250, 60.3), (315, 59.0), (400, 62.1),
    (500, 62.1), (630, 60.5), (800, 56.8), (1000, 53.7), (1250, 53.0), (1600, 52.0), (2000, 48.7), (2500, 48.1),
    (3150, 46.8), (4000, 45.6), (5000, 44.5), (6300, 44.3), (8000, 43.7),
)  # fmt: skip
_TELEPHONE_HZ: Final = (300.0, 3400.0)
_TELEPHONE_TOP_HZ: Final = 3_800.0
"""Half of a telephone's 8 kHz, less the flank of its filter."""
# Of mu-law over speech (ITU-T G.711): each sample is rounded in proportion to itself.
_ROUNDING: Final = 10.0**-3.7
# Power after T60 seconds is a millionth.
_DECAY: Final = 6.0 * np.log(10.0)
_SYLLABLES_HZ: Final = 4.0
# Frames of a telephone's speech, less their mean, are constant where nothing is carried; power is nought.
_FLOOR: Final = 1e-10


@dataclass(frozen=True, slots=True)
class VoiceAugmentation:
    """What happens to training views; each share is that of the views to which it happens.

    Args:
        noise: share with noise of a kind drawn from :data:`NOISES`.
        snr_db_lowest: decibels of the speech over the noise, drawn evenly from here
        snr_db_highest: to here.
        rooms: share in a room whose reverberation time is drawn up to ``t60_s`` and whose tail has a power of 0.05 to
            1 times that of the direct sound.
        t60_s: longest reverberation time in seconds, at least 0.1.
        telephone: share over a telephone of 8 kHz with G.711, half of them with its filter below 300 Hz as well.
        speed: share spoken faster or slower, by up to a tenth, at the pitch that comes of it: another voice to many
            encoders, so none unless asked for.
        time_mask: longest part of a view, of its length, in which nothing is heard.
        frequency_mask: largest part of the bands in which nothing is heard.

    Raises:
        SettingsError: out of range.
    """

    noise: float = 0.0
    snr_db_lowest: float = 0.0
    snr_db_highest: float = 20.0
    rooms: float = 0.0
    t60_s: float = 0.8
    telephone: float = 0.0
    speed: float = 0.0
    time_mask: float = 0.0
    frequency_mask: float = 0.0

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not np.isfinite(value):
                raise SettingsError(f"{item.name} of the augmentation is a finite number, got {value!r}")
        for name in _SHARES:
            most = 0.5 if name.endswith("mask") else 1.0
            if not 0.0 <= getattr(self, name) <= most:
                raise SettingsError(f"{name} of the augmentation lies in [0, {most:g}], got {getattr(self, name)}")
        if not -10.0 <= self.snr_db_lowest <= self.snr_db_highest <= 60.0:
            raise SettingsError(
                "decibels of speech over noise go from snr_db_lowest, -10 or more, up to snr_db_highest, 60 or less; "
                f"got {self.snr_db_lowest} to {self.snr_db_highest}"
            )
        if not 0.1 <= self.t60_s <= 3.0:
            raise SettingsError(f"t60_s of the augmentation lies in [0.1, 3], got {self.t60_s}")


def augmented(features: Array, preprocessing: Preprocessing, settings: object, rng: np.random.Generator) -> Float32:
    """One training view (view_frames, mels): augmented whole, since means are over all frames, then cut and masked.

    Args:
        features: float32 (T, mels), as :func:`uvsdk.modality.voice.frames.prepare` gives them.
        preprocessing: of the bundle.
        settings: :class:`VoiceAugmentation`.
        rng: draws everything.

    Raises:
        BundleError: the features are of another model.
    """
    assert isinstance(settings, VoiceAugmentation)
    framing = Framing.read(preprocessing)
    rows = changed(frames.checked(features, framing), framing, settings, rng)
    return _masked(frames.crop(rows, preprocessing, rng), framing, settings, rng)


def changed(rows: Float32, framing: Framing, settings: VoiceAugmentation, rng: np.random.Generator) -> Float32:
    """All frames, float32 (T, mels), spoken faster, in a room, beside noise, over a telephone: in this order."""
    shares = np.array([settings.speed, settings.rooms, settings.noise, settings.telephone])
    speed, room, noise, line = rng.random(4) < shares
    if not (speed or room or noise or line):
        return rows
    power = to_power(rows, framing)
    if speed:
        power = faster(power, framing, float(rng.uniform(0.9, 1.1)))
    if room:
        t60_s, tail = float(rng.uniform(0.1, settings.t60_s)), float(10.0 ** rng.uniform(-1.3, 0.0))
        power = reverberant(power, framing, t60_s, tail, rng)
    if noise:
        kind = NOISES[int(rng.integers(len(NOISES)))]
        power = noisy(power, framing, kind, float(rng.uniform(settings.snr_db_lowest, settings.snr_db_highest)), rng)
    if line:
        power = telephoned(power, framing, rng, filtered=bool(rng.random() < 0.5))
    return from_power(power, framing)


def to_power(rows: Float32, framing: Framing) -> Float64:
    """Power in each band, float64 (T, mels); of frames less their mean, that of average speech on the whole."""
    if framing.scale == "power":
        return np.maximum(rows.astype(np.float64), 0.0)
    power: Float64 = np.exp(rows.astype(np.float64))
    if framing.mean == "utterance":
        power *= _average_speech(framing) / power.mean(axis=0)
    elif framing.bank != "kaldi":
        power = np.maximum(power - frames.LOG_FLOOR, 0.0)
    return power


def from_power(power: Float64, framing: Framing) -> Float32:
    """The inverse of :func:`to_power`: frames as the bundle asks for them, float32 (T, mels)."""
    if framing.bank == "kaldi":
        power = np.log(np.maximum(power, _FLOOR))
    return frames.scale(power.astype(np.float32), framing)


def noisy(power: Float64, framing: Framing, kind: str, snr_db: float, rng: np.random.Generator) -> Float64:
    """With noise of a kind of :data:`NOISES`, ``snr_db`` decibels under the speech."""
    noise, cosine = _interference(_sound(kind, len(power) * framing.hop, framing, rng), framing, rng)
    weights = _weights(framing)
    scale = (power @ weights).mean() * 10.0 ** (-snr_db / 10.0) / max(float((noise @ weights).mean()), 1e-30)
    return _sum(power, scale * noise, cosine)


def reverberant(power: Float64, framing: Framing, t60_s: float, tail: float, rng: np.random.Generator) -> Float64:
    """With a tail behind each frame that falls by 60 dB in ``t60_s`` and holds ``tail`` times the frame's power.

    Its phases are as random as those of a noise, whose rise and fall it is given.
    """
    kept = float(np.exp(-_DECAY * framing.hop_s / t60_s))
    echo = np.zeros(power.shape[1])
    behind = np.empty_like(power)
    for place, row in enumerate(power):
        behind[place] = tail * (1.0 - kept) * echo
        echo = kept * (echo + row)
    noise, cosine = _interference(_sound("white", len(power) * framing.hop, framing, rng), framing, rng)
    return _sum(power, behind * noise / np.maximum(noise.mean(axis=0), 1e-30), cosine)


def telephoned(power: Float64, framing: Framing, rng: np.random.Generator, *, filtered: bool) -> Float64:
    """Through 8 kHz and G.711: its rounding is a white noise 37 dB under each frame; above it carries nothing.

    Args:
        power: (T, mels).
        framing: which bands.
        rng: of the rounding.
        filtered: whether what lies below 300 and above 3400 Hz is taken away first, by 12 dB an octave and 40 dB.
    """
    centres, weights = _centres(framing), _weights(framing)
    carried = (centres < _TELEPHONE_TOP_HZ).astype(np.float64)
    gain = carried.copy()
    if filtered:
        low, high = _TELEPHONE_HZ
        gain *= np.minimum(1.0, (centres / low) ** 4) * np.where(centres > high, 1e-4, 1.0)
    line = power * gain
    rounding, cosine = _interference(_sound("white", len(power) * framing.hop, framing, rng), framing, rng)
    rounding *= carried
    rounding *= _ROUNDING * ((line @ weights) / max(float((rounding @ weights).mean()), 1e-30))[:, None]
    return _sum(line, rounding, cosine)


def _sum(power: Float64, other: Float64, cosine: Float64) -> Float64:
    """Power of two sounds at once: |S + N|^2 = |S|^2 + |N|^2 + 2 |S| |N| cos(phi), (T, mels)."""
    found: Float64 = power + other + 2.0 * cosine * np.sqrt(power * other)
    return np.maximum(found, 0.0)


def _interference(sound: Float32, framing: Framing, rng: np.random.Generator) -> tuple[Float64, Float64]:
    """Power of ``sound`` in each band (T, mels), and the cosine of its phase to that of another sound, (T, mels).

    The other is white noise, for the phases of speech are not known. Measured and not drawn for each frame and band:
    frames overlap and bands share bins, so that neighbours go together, which encoders hear.
    """
    other = _sound("white", len(sound), framing, rng)
    count = len(sound) // framing.hop
    one, two, both = (_heard(each, framing)[:count].astype(np.float64) for each in (sound, other, sound + other))
    return one, np.clip((both - one - two) / (2.0 * np.sqrt(np.maximum(one * two, 1e-30))), -1.0, 1.0)


def faster(power: Float64, framing: Framing, factor: float) -> Float64:
    """Played ``factor`` times as fast: fewer frames, every frequency ``factor`` times as high."""
    count = max(1, round(len(power) / factor))
    places = np.minimum(np.arange(count) * factor, len(power) - 1)
    before = places.astype(np.int64)
    share = (places - before)[:, None]
    sped = (1 - share) * power[before] + share * power[np.minimum(before + 1, len(power) - 1)]
    centres = _centres(framing)
    density = sped / _response(framing, np.ones(framing.window // 2 + 1))
    moved = np.stack([np.interp(centres / factor, centres, row, right=0.0) for row in density])
    found: Float64 = moved * _response(framing, np.ones(framing.window // 2 + 1))
    return found


def _masked(view: Float32, framing: Framing, settings: VoiceAugmentation, rng: np.random.Generator) -> Float32:
    """One mask in time and one in frequency; what is masked is silence, or the mean."""
    if not settings.time_mask and not settings.frequency_mask:
        return view
    found = view.copy()
    hidden = np.float32(np.log(frames.LOG_FLOOR) if (framing.scale, framing.mean) == ("log", "none") else 0.0)
    for axis, share in enumerate((settings.time_mask, settings.frequency_mask)):
        size = int(rng.integers(0, round(share * view.shape[axis]) + 1))
        start = int(rng.integers(0, view.shape[axis] - size + 1))
        found[(slice(None),) * axis + (slice(start, start + size),)] = hidden
    return found


def _sound(kind: str, count: int, framing: Framing, rng: np.random.Generator) -> Float32:
    """Noise of one kind, float32 (count,)."""
    spectrum = np.fft.rfft(rng.standard_normal(count))
    hz = np.fft.rfftfreq(count, 1.0 / framing.sample_rate)
    if kind in ("pink", "hum"):
        spectrum /= np.sqrt(np.maximum(hz, 20.0))
    elif kind == "murmur":
        spectrum *= np.sqrt(_density(hz.astype(np.float64)))
    sound = np.fft.irfft(spectrum, count)
    sound /= max(float(np.sqrt(np.mean(sound**2))), 1e-12)
    times = np.arange(count) / framing.sample_rate
    if kind == "hum":
        mains, phases = float(rng.choice([50.0, 60.0])), rng.uniform(0.0, 2 * np.pi, 12)
        tones = (np.sin(2 * np.pi * mains * n * times + phase) / n for n, phase in enumerate(phases, start=1))
        sound = 0.5 * sound + np.sum(list(tones), axis=0)
    elif kind == "murmur":
        phase, rate = rng.uniform(0.0, 2 * np.pi), _SYLLABLES_HZ * rng.uniform(0.5, 1.5)
        sound *= 1.0 + 0.7 * np.sin(2 * np.pi * rate * times + phase)
    return np.asarray(0.05 * sound, np.float32)


def _heard(pcm: Float32, framing: Framing) -> Float32:
    """Power in each band, float32 (1 + n // hop, mels), by the front end that the bundle asks for."""
    if framing.bank == "kaldi":
        rows = fbank.fbank(
            pcm, sample_rate=framing.sample_rate, window=framing.window, hop=framing.hop, mels=framing.mels
        )
        return np.asarray(np.exp(rows), np.float32)
    power = mel.power_spectrum(pcm, framing.window, framing.hop)
    return power @ mel.filter_bank(framing.sample_rate, framing.window, framing.mels).T


@lru_cache(maxsize=8)
def _bank(framing: Framing) -> tuple[Float64, Float64]:
    """The filters of the bank (mels, bins) and the frequency of each bin in Hz; Kaldi's with its emphasis."""
    if framing.bank != "kaldi":
        bank = mel.filter_bank(framing.sample_rate, framing.window, framing.mels).astype(np.float64)
        return bank, np.linspace(0.0, framing.sample_rate / 2, bank.shape[1])
    bank = fbank.filter_bank(framing.sample_rate, framing.window, framing.mels).astype(np.float64)
    hz = np.arange(bank.shape[1]) * (framing.sample_rate / 2 / bank.shape[1])
    turn = 2 * np.pi * hz / framing.sample_rate
    return bank * (1.0 + fbank.PREEMPHASIS**2 - 2.0 * fbank.PREEMPHASIS * np.cos(turn)), hz


def _response(framing: Framing, spectrum: Float64) -> Float64:
    """What each band makes of a power spectrum that holds one value for each bin, (mels,)."""
    bank, hz = _bank(framing)
    found: Float64 = bank @ np.interp(hz, np.linspace(0.0, framing.sample_rate / 2, len(spectrum)), spectrum)
    return np.maximum(found, 1e-12)


def _centres(framing: Framing) -> Float64:
    """The middle of each band in Hz, (mels,)."""
    bank, hz = _bank(framing)
    found: Float64 = bank @ hz / np.maximum(bank.sum(axis=1), 1e-12)
    return np.maximum.accumulate(np.maximum(found, 1.0))


@lru_cache(maxsize=8)
def _weights(framing: Framing) -> Float64:
    """What the bands count in the power of the sound, (mels,): the density in each times its width."""
    found: Float64 = np.gradient(_centres(framing)) / _response(framing, np.ones(framing.window // 2 + 1))
    return found


@lru_cache(maxsize=8)
def _average_speech(framing: Framing) -> Float64:
    """Power of average speech in each band, (mels,), at the level that recordings are raised to."""
    bins = np.linspace(0.0, framing.sample_rate / 2, framing.window // 2 + 1)
    found = _response(framing, _density(bins))
    found /= found.sum()
    return found


def _density(hz: Float64) -> Float64:
    """Power of average speech per Hz, without a unit."""
    centres, levels = (np.array(column, np.float64) for column in zip(*_AVERAGE_SPEECH, strict=True))
    per_hz = levels - 10.0 * np.log10(centres * (2 ** (1 / 6) - 2 ** (-1 / 6)))
    found: Float64 = 10.0 ** (np.interp(np.log(np.maximum(hz, 20.0)), np.log(centres), per_hz) / 10.0)
    falling: Float64 = found * np.minimum(hz / centres[0], 1.0) ** 4
    return falling
