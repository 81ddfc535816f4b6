"""Voice: recordings to mel frames of what was spoken.

Features are float32 (T, mels), one frame per hop of the speech that was found.
"""

from uvsdk.modality.contract import Augment, Graph, Modality
from uvsdk.modality.voice import frames, overlap
from uvsdk.modality.voice.augmentation import VoiceAugmentation, augmented
from uvsdk.modality.voice.degradation import worsen
from uvsdk.scoring.cells import Division
from uvsdk.scoring.compensation import DIRECTIONS
from uvsdk.scoring.conditions import Condition

# Five clips of about 3 s make a complete enrolment (tests/benchmarks/enrolment).
SPEECH_S = Condition("speech_s", logarithmic=True, complete=15.0)
# Less noise than at 30 dB changes nothing; clean recordings measure 15 to 50 dB.
SNR_DB = Condition("snr_db", highest=30.0)
BANDWIDTH_HZ = Condition("bandwidth_hz")

MODALITY = Modality(
    prepare=frames.prepare,
    views=frames.views,
    crop=frames.crop,
    augment=Augment(VoiceAugmentation, augmented),
    graphs={
        "vad": Graph(
            "speech.onnx",
            "speech.onnx by examples/voice_activity, Apache-2.0; taught on LibriSpeech (CC BY 4.0) by Silero VAD (MIT)",
        )
    },
    checks={overlap.NAME: overlap.look},
    conditions=(SPEECH_S, SNR_DB, BANDWIDTH_HZ),
    # What moves the scores of a voice: short clips, noise, telephones, which have 4 kHz of bandwidth.
    cells=(Division("speech_s", (2.0,)), Division("snr_db", (15.0,)), Division("bandwidth_hz", (5000.0,))),
    reported={
        "speech_s": "Seconds of speech",
        "snr_db": "Signal-to-noise ratio (dB)",
        "bandwidth_hz": "Bandwidth (Hz)",
    },
    worsen=worsen,
    directions=DIRECTIONS,  # noise and telephones move every voice along the same ones
    advice="say other sentences, or add some another day",
)
