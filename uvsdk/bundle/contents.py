"""What the members of a bundle hold, read and checked one by one."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from uvsdk import modality
from uvsdk.arrays import Float32
from uvsdk.bundle.archive import CALIBRATION, IMPOSTORS, PRESENTATION, THETA, graphs_of
from uvsdk.bundle.manifest import Manifest, encode, object_of
from uvsdk.bundle.presentation_graph import PresentationGraph
from uvsdk.errors import BundleError, UntrustedBundleError
from uvsdk.privacy.bundle_signing import BundleSignature
from uvsdk.scoring import Calibration
from uvsdk.scoring.record import MAGICS, read_calibration


def version_of(manifest: Manifest, digests: Mapping[str, bytes]) -> str:
    """SHA-256 over what decides an embedding: words about sources, the calibration and checks of samples do not."""
    identity = encode(manifest)
    del identity["sources"]
    digest = hashlib.sha256(b"uvsdk model 1\n")
    digest.update(json.dumps(identity, sort_keys=True, allow_nan=False).encode() + b"\n")
    checks = modality.get(manifest.modality).checks
    for name, graph in sorted(graphs_of(digests).items()):
        if name in checks:
            continue
        digest.update(name.encode() + b" " + graph)
    digest.update(digests[THETA])
    return digest.hexdigest()


def theta_bytes(manifest: Manifest, theta: Float32) -> bytes:
    """``theta`` as the member theta.f32. Raises :class:`BundleError` where it does not fit or is not finite."""
    if theta.dtype != np.float32 or theta.shape != (manifest.size,):
        raise BundleError(f"theta is {theta.dtype} {theta.shape}, expected float32 {(manifest.size,)}")
    if not np.isfinite(theta).all():
        raise BundleError("theta holds values that are not finite")
    return np.ascontiguousarray(theta, np.dtype("<f4")).tobytes()


def presentation_of(record: Mapping[str, object], members: Mapping[str, bytes]) -> PresentationGraph | None:
    """The detector that the manifest describes. Raises :class:`BundleError` where it and the members disagree."""
    described = record.get("presentation")
    if (described is None) != (PRESENTATION not in members):
        raise BundleError("the manifest and the members disagree on a presentation attack detector")
    return None if described is None else PresentationGraph.read(object_of(described), members[PRESENTATION])


def calibration_of(members: Mapping[str, bytes], described: Mapping[str, object], *, kind: str) -> Calibration:
    """The calibration that the manifest describes, of the modality ``kind``. Raises :class:`BundleError`."""
    version, source = described["model_version"], described["source"]
    if not isinstance(version, str) or not isinstance(source, str):
        raise BundleError("the calibration in the manifest lacks its model version or its source")
    present = [name for name in (IMPOSTORS, CALIBRATION) if name in members]
    if len(present) > 1 or (present == [CALIBRATION]) != members[present[0]].startswith(MAGICS):
        raise BundleError("a bundle has one calibration: scores in impostors.f32, or all of it in calibration.bin")
    conditions = modality.get(kind).conditions if present == [CALIBRATION] else ()
    return read_calibration(members[present[0]], model_version=version, source=source, conditions=conditions)


def trusted_signer(signature: BundleSignature | None, trusted: Collection[Ed25519PublicKey]) -> str:
    """Id of the key that signed, which is one of ``trusted``; the signature itself holds."""
    if signature is None:
        raise UntrustedBundleError(
            "the bundle is not signed, and a signature is asked for; get a signed copy, or sign it after looking at it "
            "(uvsdk bundle show, uvsdk bundle sign)"
        )
    if signature.public_key not in {key.public_bytes_raw() for key in trusted}:
        raise UntrustedBundleError(
            f"the bundle is signed by the key {signature.key_id[:12]}, which is none of those that are trusted "
            "here; get it from the publisher, or trust that key"
        )
    return signature.key_id
