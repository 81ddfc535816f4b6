"""Handwriting: pictures of one sign to a small grid of ink, for demonstrations.

Features are ink, float32 (S, S), 0 (paper) to 1 (the strongest ink).
"""

from uvsdk.modality.contract import Modality
from uvsdk.modality.handwriting import ink

MODALITY = Modality(prepare=ink.prepare, views=ink.views, crop=ink.crop)
