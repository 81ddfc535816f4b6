"""Verification by face: photos to aligned chips."""

from uvsdk.modality.contract import Modality
from uvsdk.modality.face.chips import Face

MODALITY: Modality = Face()
