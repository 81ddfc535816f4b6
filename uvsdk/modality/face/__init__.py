"""Face: photos to aligned chips.

Features are one RGB chip, uint8 (S, S, 3), aligned by five landmarks. A calibration takes no directions out: 400 people
of LFW's first fold, photos against copies of 40 pixels, have an equal error rate of 0.53 % by cosine, 0.32 % with the
mean face subtracted and 0.40 % with twenty directions taken out as well.
"""

from uvsdk.modality.contract import Augment, Graph, Modality
from uvsdk.modality.face import chips
from uvsdk.modality.face.augmentation import FaceAugmentation, augmented
from uvsdk.modality.face.degradation import worsen
from uvsdk.scoring.cells import Division
from uvsdk.scoring.conditions import Condition

MODALITY = Modality(
    prepare=chips.prepare,
    views=chips.views,
    crop=chips.crop,
    augment=Augment(FaceAugmentation, augmented),
    graphs={"detector": Graph("yunet")},
    highest=255.0,
    conditions=(Condition("face_pixels", logarithmic=True), Condition("sharpness", logarithmic=True)),
    # Faces far away, and heads that are turned by half of what the strict policy allows or more. The turn is counted in
    # evaluations and in no card: on LFW it moves error rates little (examples/reproduce/selfcalibration).
    cells=(Division("face_pixels", (100.0,)), Division("yaw", (0.18,), absolute=True)),
    reported={"face_pixels": "Width of the face (pixels)", "sharpness": "Sharpness", "brightness": "Brightness"},
    worsen=worsen,
    advice="turn the head a little between pictures, change the light, or add some another day",
    classifier="uvsdk.presentation.antispoof:FaceClassifier",
)
