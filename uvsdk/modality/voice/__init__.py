"""Verification by voice: recordings of any container to mel frames of what was spoken."""

from uvsdk.modality.contract import Modality
from uvsdk.modality.voice.frames import Voice

MODALITY: Modality = Voice()
