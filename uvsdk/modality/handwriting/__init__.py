"""Recognition of who wrote a sign, for demonstrations: pictures to a small grid of ink."""

from uvsdk.modality.contract import Modality
from uvsdk.modality.handwriting.ink import Handwriting

MODALITY: Modality = Handwriting()
