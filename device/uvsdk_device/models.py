"""Model bundles from the coordination server, kept on disk and fetched again only where they changed."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import TypeAlias

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from uvsdk.arrays import Float32
from uvsdk.bundle import Bundle
from uvsdk.bundle.archive import MAXIMUM_BYTES
from uvsdk.errors import BundleError, UntrustedBundleError, WireError
from uvsdk.release.record import Release
from uvsdk_device.connection import Connection
from uvsdk_device.keystore import EncryptedStore
from uvsdk_device.records import disk_errors

_VERSION = re.compile(r"[0-9a-f]{64}")

_FileState: TypeAlias = tuple[int, int, int]
"""Of a file: inode, bytes, and when it was written, ns."""


class Models:
    """The server's models as one device sees them.

    Args:
        store: the bundles lie in its ``models`` folder. None of them verifies for having been downloaded: that is for
            :mod:`uvsdk_device.releases` to say.
        connection: a signed one.
        signing_key: of the server that this device approved.
        known: a bundle whose graphs the server's models may share, so that only theta need be fetched.
    """

    def __init__(
        self,
        store: EncryptedStore,
        connection: Connection,
        signing_key: Ed25519PublicKey,
        known: Bundle | None = None,
    ) -> None:
        self._store = store
        self._folder = store.folder / "models"
        self._connection = connection
        self._signing_key = signing_key
        self._known = known
        self._opened: tuple[Path, _FileState, Bundle] | None = None

    def opened(self, path: Path) -> Bundle:
        """A bundle on the disk that the server has signed; the one asked for last is read again only where its file has
        changed, for a device asks between any two rounds.

        Raises:
            BundleError, UntrustedBundleError: as :meth:`uvsdk.bundle.Bundle.open`.
        """
        state = _state(path)  # before it is read: what is written meanwhile is read the next time
        if self._opened is not None and self._opened[:2] == (path, state):
            return self._opened[2]
        bundle = Bundle.open(path, trusted=[self._signing_key])
        self._opened = None if state is None else (path, state, bundle)
        return bundle

    def of_round(self, version: str) -> Bundle:
        """The model a round starts from; only its theta is fetched where its graphs are known.

        Raises:
            WireError: what the server sent is not the version it names.
        """
        _checked(version)
        if self._known is not None and self._known.version == version:
            return self._known
        if self._known is not None and self._known.manifest.size:
            size = 4 * self._known.manifest.size
            body = self._connection.get(f"/v1/models/{version}/theta", limit=size).body
            if len(body) == size:
                # Not finite, or of other graphs: the whole bundle then decides.
                with contextlib.suppress(BundleError):
                    candidate = self._known.with_theta(np.frombuffer(body, np.dtype("<f4")))
                    if candidate.version == version:
                        self._known = candidate
                        return candidate
        return self.bundle(version)

    def of_evaluation(self, released: str) -> Bundle:
        """The model that verifies now, beside which a candidate is evaluated: from the disk where it was adopted.

        Raises:
            WireError: as :meth:`of_round`.
        """
        if self._known is None or self._known.version != released:
            for path in sorted(self._folder.glob("release-*.uvb")):
                with contextlib.suppress(BundleError):
                    kept = self.opened(path)
                    if kept.version == released:
                        return kept
        return self.of_round(released)

    def control(self, version: str, parameters: int) -> Float32:
        """SCAFFOLD's c that goes with the current version, float32 (``parameters``,).

        Raises:
            ServerRefusedError: 404 where ``version`` is no longer the current one.
            WireError: not as many finite numbers.
        """
        body = self._connection.get(f"/v1/models/{_checked(version)}/control", limit=4 * parameters).body
        control = np.frombuffer(body, np.dtype("<f4")) if len(body) % 4 == 0 else np.empty(0, np.float32)
        if control.shape != (parameters,) or not np.isfinite(control).all():
            raise WireError(f"the server's control variate is not {parameters} finite float32 values")
        return control

    def bundle(self, version: str) -> Bundle:
        """The whole bundle, with the server's calibration; from the disk where the server says it is unchanged.

        It is signed by the server, every member and the calibration with it, also the copy on the disk: one that was
        altered there is fetched again.

        Raises:
            WireError: what the server sent is not the version it names, or is no bundle.
            UntrustedBundleError: it is not signed by the key this device approved.
            StoreFullError: no space to keep it.
        """
        path = self._folder / f"{_checked(version)}.uvb"
        kept, etag = _kept(path, self._signing_key)
        answer = self._connection.get(f"/v1/models/{version}/bundle", limit=MAXIMUM_BYTES, etag=etag)
        if answer.status == 304 and kept is not None:
            self._known = kept
            return kept
        try:
            bundle = Bundle.from_bytes(answer.body, trusted=[self._signing_key])
        except UntrustedBundleError:
            raise
        except BundleError as error:
            raise WireError(f"the server sent a model that cannot be used: {error}") from error
        if bundle.version != version:
            raise WireError(f"asked for the model {version[:12]}, the server sent {bundle.version[:12]}")
        self._keep(path, bundle, answer.headers.get("etag", ""))
        self._known = bundle
        return bundle

    def of_release(self, release: Release) -> Bundle:
        """The bundle of a release, from the disk where it is; what is downloaded is not kept yet.

        Raises:
            WireError: what the server sent is not the bundle that the release names.
            UntrustedBundleError: it is not signed by the key this device approved.
        """
        version = _checked(release.model_version)
        for path in (released_path(self._store, release.bundle), self._folder / f"{version}.uvb"):
            with contextlib.suppress(BundleError):
                kept = self.opened(path)
                if kept.digest == release.bundle:
                    return kept
        answer = self._connection.get(f"/v1/releases/{release.number}/bundle", limit=MAXIMUM_BYTES)
        try:
            bundle = Bundle.from_bytes(answer.body, trusted=[self._signing_key])
        except UntrustedBundleError:
            raise
        except BundleError as error:
            raise WireError(f"the server sent a model that cannot be used: {error}") from error
        if (bundle.digest, bundle.version) != (release.bundle, release.model_version):
            raise WireError(
                f"release {release.number} is the bundle {release.bundle[:12]}, the server sent {bundle.digest[:12]}"
            )
        return bundle

    def _keep(self, path: Path, bundle: Bundle, etag: str) -> None:
        with self._store.lock(), disk_errors():
            # The tag goes first and comes last, so that it never vouches for another file than the one it came with.
            path.with_suffix(".etag").unlink(missing_ok=True)
            bundle.save(path)
            path.with_suffix(".etag").write_text(etag)
            for old in self._folder.glob("*.uvb"):
                if old != path and _VERSION.fullmatch(old.stem):  # others are releases
                    old.with_suffix(".etag").unlink(missing_ok=True)
                    old.unlink(missing_ok=True)


def released_path(store: EncryptedStore, digest: str) -> Path:
    """Where the bundle of that digest lies, if it is one of a release that this device has adopted."""
    return store.folder / "models" / f"release-{_checked(digest)}.uvb"


def _kept(path: Path, signing_key: Ed25519PublicKey) -> tuple[Bundle | None, str | None]:
    try:
        bundle = Bundle.open(path, trusted=[signing_key])
        etag = path.with_suffix(".etag").read_text()
    except (BundleError, OSError):
        return None, None
    return (bundle, etag) if etag and f"{bundle.version}.uvb" == path.name else (None, None)


def _state(path: Path) -> _FileState | None:
    with contextlib.suppress(OSError):
        found = path.stat()
        return found.st_ino, found.st_size, found.st_mtime_ns
    return None


def _checked(version: str) -> str:
    if not _VERSION.fullmatch(version):
        raise WireError("a model version is 64 hexadecimal digits; what the server sent is not")
    return version
