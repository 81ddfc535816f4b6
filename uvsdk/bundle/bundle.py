"""A model as one file: everything an edge device needs to embed a sample, with numpy and onnxruntime alone.

A bundle is a zip archive of stored (uncompressed) members::

    manifest.json       Manifest, and the SHA-256 and size of every other member
    embedding.onnx      views -> z; its trainable tensors are external, located in theta.f32
    NAME.onnx           other graphs that the modality needs, e.g. a voice activity or a face detector; or that check
                        samples, e.g. for people who speak at once, which are no part of the model version
    presentation.onnx   faces only, optional: a presentation attack detector; no part of the model version
    theta.f32           the trainable parameters, little-endian float32, in the manifest's order
    impostors.f32       calibration scores, where the bundle has been calibrated
    calibration.bin     in its place: scores, likelihood ratio and, where asked for, a cohort (uvsdk.scoring.record)
    signature.json      optional: who stands behind all of this (uvsdk.privacy.bundle_signing)

Because theta lies apart from the graphs, a server without torch makes the next model version by replacing theta.

Two names tell bundles apart. The *version* is over what decides an embedding; templates are bound to it, and it
outlives a new calibration. The *digest* is over everything but the signature: what was vouched for, or accepted once,
is that.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib.resources
import math
import os
import secrets
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from uvsdk import modality
from uvsdk.arrays import Float32
from uvsdk.bundle.archive import (
    CALIBRATION,
    IMPOSTORS,
    MANIFEST,
    MAXIMUM_BYTES,
    PRESENTATION,
    SIGNATURE,
    THETA,
    check_members,
    graphs_of,
    manifest_text,
    pack_members,
    read_members,
)
from uvsdk.bundle.contents import calibration_of, presentation_of, theta_bytes, trusted_signer, version_of
from uvsdk.bundle.external_data import check_external
from uvsdk.bundle.manifest import FORMAT, Manifest, decode, encode, object_of, parse
from uvsdk.bundle.presentation_graph import PresentationGraph
from uvsdk.errors import BundleError, ModelMismatchError, UnknownNameError
from uvsdk.privacy import bundle_signing
from uvsdk.privacy.bundle_signing import BundleSignature, BundleStatement
from uvsdk.scoring import Calibration
from uvsdk.scoring.plausibility import check
from uvsdk.scoring.record import MAGICS, calibration_bytes
from uvsdk.system.execution import onnxruntime
from uvsdk.system.forking import in_child, steady

# Views go through the graph so many, or so many numbers, at a time, so that a long recording does not cost memory in
# proportion, and many short ones do not either.
_BATCH = 32
_BATCH_VALUES = 80_000

SPANS = "spans"
"""The name under which an embedding graph gives what it makes of short spans of its views, float32 (n, k, d)."""


class Bundle:
    """One model version.

    Args:
        manifest: what the bundle holds.
        theta: trainable parameters, float32 (P,), finite; P as the manifest says.
        graphs: ONNX graphs by name: ``embedding``, and those of the modality.
        calibration: impostor scores of exactly this model version.
        digests: SHA-256 of members that the caller knows, by file name, so that no member is hashed twice.
        presentation: a presentation attack detector that travels with the model; its graph is ``presentation``.

    Raises:
        BundleError: the parts do not fit together.
        ModelMismatchError: the calibration belongs to another model version.
    """

    def __init__(
        self,
        manifest: Manifest,
        theta: Float32,
        graphs: Mapping[str, bytes],
        calibration: Calibration | None = None,
        *,
        digests: Mapping[str, bytes] = MappingProxyType({}),
        presentation: PresentationGraph | None = None,
    ) -> None:
        self.manifest = manifest
        self.graphs: Mapping[str, bytes] = MappingProxyType(dict(graphs))
        self._theta_bytes = theta_bytes(manifest, theta)
        self.theta: Float32 = np.frombuffer(self._theta_bytes, np.dtype("<f4"))
        others = set(self.graphs) - {"embedding"}
        if "embedding" not in self.graphs or (others and not others <= _allowed(manifest.modality)):
            raise BundleError(
                f"a bundle has the graph 'embedding' and those of its modality {manifest.modality}, "
                f"got {sorted(self.graphs)}"
            )
        self._check_places(self.graphs, built=False)
        if presentation is not None:
            self._check_places({"presentation": presentation.graph}, built=False)
        members = self._members().items()
        self._digests = {name: digests.get(name) or hashlib.sha256(body).digest() for name, body in members}
        self.version: str = version_of(manifest, self._digests)
        if calibration is not None and calibration.model_version != self.version:
            raise ModelMismatchError(
                f"the impostor scores belong to model {calibration.model_version[:12]}, this bundle is "
                f"{self.version[:12]}; calibrate this model"
            )
        self.calibration = calibration
        self.presentation = presentation
        self.signature: BundleSignature | None = None
        self.signed_by: str | None = None
        """Id of the trusted key whose signature was found when the bundle was opened; ``None`` where none was asked."""
        self._text = b""
        self._sessions = _Sessions()

    def __reduce__(self) -> tuple[object, ...]:
        parts = (self.manifest, self.theta, dict(self.graphs), self.calibration)
        named = {"digests": dict(self._digests), "presentation": self.presentation}
        return _bundle, (type(self), parts, named, {"signature": self.signature, "signed_by": self.signed_by})

    def __repr__(self) -> str:
        state = "calibrated" if self.calibration else "uncalibrated"
        return f"<Bundle {self.manifest.modality}/{self.manifest.backbone} {self.version[:12]} {state}>"

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, trusted: Collection[Ed25519PublicKey] | None = None) -> Bundle:
        """Read a bundle file.

        Args:
            path: of the file.
            trusted: keys, one of which must have signed it (:func:`uvsdk.privacy.bundle_signing.read_public_key`);
                ``None`` asks for no signature.

        Raises:
            BundleError: it cannot be read or is not a bundle.
            UntrustedBundleError: none of ``trusted`` has signed it, or it was altered afterwards.
        """
        try:
            size = Path(path).stat().st_size
            if size > MAXIMUM_BYTES:
                raise BundleError(f"{path} has {size} bytes, a bundle has at most {MAXIMUM_BYTES}")
            data = Path(path).read_bytes()
        except OSError as error:
            raise BundleError(f"cannot read the bundle {path}: {error.strerror}") from error
        return cls.from_bytes(data, trusted=trusted)

    @classmethod
    def from_bytes(cls, data: bytes, *, trusted: Collection[Ed25519PublicKey] | None = None) -> Bundle:
        """The inverse of :meth:`to_bytes`; every member is checked, graphs are built only when first used.

        Raises:
            BundleError: not a bundle, cut short, altered, or over :data:`MAXIMUM_BYTES`; or with a calibration that
                nobody can have measured (:mod:`uvsdk.scoring.plausibility`).
            UntrustedBundleError: as :meth:`open`.
        """
        members = read_members(data)
        text, signature = members.pop(MANIFEST), members.pop(SIGNATURE, None)
        bundle = cls._of_members(parse(text), members)
        try:
            rewritten = bundle._manifest_text()
        except ValueError as error:
            raise BundleError("manifest.json holds a number that is not finite; fetch the bundle again") from error
        if rewritten != text:
            raise BundleError("manifest.json is not what this version of uvsdk writes of such a bundle; is it newer?")
        if signature is not None:
            bundle.signature = BundleSignature.from_bytes(signature)
            bundle.signature.check(bundle.statement(bundle.signature.issuer))
        if trusted is not None:
            bundle.signed_by = trusted_signer(bundle.signature, trusted)
        return bundle

    @classmethod
    def _of_members(cls, record: Mapping[str, object], members: Mapping[str, bytes]) -> Bundle:
        digests = check_members(record, members)
        try:
            manifest = decode(record)
            theta = np.frombuffer(members[THETA], np.dtype("<f4"))
            graphs = graphs_of(members)
            presentation = presentation_of(record, members)
            bundle = cls(manifest, theta, graphs, digests=digests, presentation=presentation)
            if record["version"] != bundle.version:
                raise BundleError("the manifest names another model version than the one its members make")
            described = record.get("calibration")
            if (described is None) != (IMPOSTORS not in members and CALIBRATION not in members):
                raise BundleError("the manifest and the members disagree on calibration")
            if described is None:
                return bundle
            return bundle.with_calibration(calibration_of(members, object_of(described), kind=manifest.modality))
        except (KeyError, TypeError, ValueError, AttributeError, ModelMismatchError, UnknownNameError) as error:
            raise BundleError(f"the manifest does not describe this bundle: {error}") from error

    def to_bytes(self) -> bytes:
        """The bundle as one file; equal bundles give equal bytes.

        Raises:
            BundleError: its calibration is not one that :meth:`from_bytes` would read.
        """
        if self.calibration is not None:
            check(self.calibration)
        members, _ = self._contents()
        signature = {} if self.signature is None else {SIGNATURE: self.signature.to_bytes()}
        return pack_members({MANIFEST: self._manifest_text(), **members, **signature})

    @property
    def digest(self) -> str:
        """SHA-256, 64 hexadecimal digits, over every member and every word of the manifest; not over the signature."""
        return hashlib.sha256(b"uvsdk bundle 1\n" + self._manifest_text()).hexdigest()

    @property
    def members(self) -> Mapping[str, str]:
        """Name -> SHA-256 (hexadecimal) of every member but the manifest and the signature."""
        return {name: digest.hex() for name, digest in self._contents()[1].items()}

    def statement(self, issuer: str = "") -> BundleStatement:
        """What a signature by ``issuer`` says of this bundle."""
        calibration = "" if self.calibration is None else self.calibration.digest
        return BundleStatement(issuer, self.digest, self.version, calibration)

    def sign(self, key: Ed25519PrivateKey, *, issuer: str = "") -> Bundle:
        """The same bundle under the signature of ``key``; graphs and sessions are shared."""
        bundle = self.with_calibration(self.calibration)
        bundle.signature = bundle_signing.sign(bundle.statement(issuer), key)
        return bundle

    def without_cohort(self) -> Bundle:
        """The same model version without anybody's embedding (:meth:`uvsdk.scoring.Calibration.without_cohort`)."""
        if self.calibration is None or self.calibration.cohort is None:
            return self
        return self.with_calibration(self.calibration.without_cohort())

    def _contents(self) -> tuple[dict[str, bytes], dict[str, bytes]]:
        """Body and SHA-256 of every member but the manifest and the signature."""
        members, digests = self._members(), dict(self._digests)
        if self.calibration is not None:
            body = calibration_bytes(self.calibration)
            name = CALIBRATION if body.startswith(MAGICS) else IMPOSTORS
            members[name], digests[name] = body, hashlib.sha256(body).digest()
        if self.presentation is not None:
            members[PRESENTATION] = self.presentation.graph
            digests[PRESENTATION] = hashlib.sha256(self.presentation.graph).digest()
        return members, digests

    def _manifest_text(self) -> bytes:
        if self._text:
            return self._text
        record = encode(self.manifest) | {"format": FORMAT, "version": self.version}
        if self.calibration is not None:
            record["calibration"] = {
                "model_version": self.calibration.model_version,
                "source": self.calibration.source,
            }
        if self.presentation is not None:
            record["presentation"] = self.presentation.describe()
        self._text = manifest_text(record, *self._contents())
        return self._text

    def _members(self) -> dict[str, bytes]:
        members = {f"{name}.onnx": graph for name, graph in self.graphs.items()}
        members[THETA] = self._theta_bytes
        return members

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the bundle so that ``path`` holds the old file or the whole new one, never a part.

        Raises:
            BundleError: the folder is missing, not writable, or the disk is full; or what would be written does not
                open again, and an older file stays in place.
        """
        data = self.to_bytes()
        if Bundle.from_bytes(data).version != self.version:
            raise BundleError("the bundle that would be written opens as another model version; nothing was written")
        target = Path(path)
        # A plain file beside the target: made under the user's umask, and in the file system of the rename.
        temporary = target.with_name(f".{target.name}.{secrets.token_hex(8)}")
        try:
            with temporary.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(target)
        except OSError as error:
            temporary.unlink(missing_ok=True)
            raise BundleError(f"cannot write the bundle {path}: {error.strerror}") from error

    def with_theta(self, theta: Float32) -> Bundle:
        """The same model with other parameters, float32 (P,); the graphs are shared.

        The calibration is left behind: its scores are those of another model version.
        """
        kept = {name: digest for name, digest in self._digests.items() if name != THETA}
        return Bundle(self.manifest, theta, self.graphs, digests=kept, presentation=self.presentation)

    def with_calibration(self, calibration: Calibration | None) -> Bundle:
        """The same model version with these impostor scores; graphs and sessions are shared.

        Raises:
            ModelMismatchError: the scores belong to another model version.
        """
        bundle = Bundle(
            self.manifest,
            self.theta,
            self.graphs,
            calibration,
            digests=self._digests,
            presentation=self.presentation,
        )
        bundle._sessions = self._sessions
        return bundle

    def with_presentation(self, presentation: PresentationGraph | None) -> Bundle:
        """The same model version with this presentation attack detector, or with none.

        Raises:
            BundleError: nothing runs such a detector on samples of this modality.
        """
        if presentation is not None and not modality.get(self.manifest.modality).classifier:
            raise BundleError(f"{presentation.detector} looks at faces, this model takes {self.manifest.modality}")
        return Bundle(
            self.manifest,
            self.theta,
            self.graphs,
            self.calibration,
            digests=self._digests,
            presentation=presentation,
        )

    def with_check(self, name: str, graph: bytes, *, source: str) -> Bundle:
        """The same model version with this check of its samples (:attr:`uvsdk.modality.Modality.checks`).

        Args:
            name: of the check.
            graph: ONNX.
            source: where it comes from and under which licence, for the manifest.

        Raises:
            BundleError: the modality has no such check.
        """
        if name not in modality.get(self.manifest.modality).checks:
            raise BundleError(f"there is no check {name!r} of samples of the modality {self.manifest.modality}")
        sources = tuple(dict.fromkeys([*self.manifest.sources, source]))
        return Bundle(
            replace(self.manifest, sources=sources),
            self.theta,
            {**self.graphs, name: graph},
            self.calibration,
            presentation=self.presentation,
        )

    def session(self, name: str = "embedding", threads: int = 1) -> onnxruntime.InferenceSession:
        """The onnxruntime session of one graph, built at first use and kept; safe to call from several threads.

        Its results do not depend on ``threads``. A graph in 8 bits is therefore computed on one whatever is asked for:
        onnxruntime would share the rows out among threads, and each share would have a scale of its own.

        Raises:
            BundleError: the bundle has no such graph, or onnxruntime refuses it.
        """
        threads = 1 if name == "embedding" and self._in_8_bits else threads
        return self._sessions.get(name, threads, self._build)

    def _build(self, name: str, threads: int) -> onnxruntime.InferenceSession:
        graphs = dict(self.graphs)
        if self.presentation is not None:
            graphs["presentation"] = self.presentation.graph
        if name not in graphs:
            raise BundleError(f"this bundle has no graph {name!r}; it has {', '.join(graphs)}")
        self._check_places({name: graphs[name]}, built=True)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        # Spinning would burn the cores between two probes; onnxruntime's warnings are about graph optimisation only.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        options.log_severity_level = 3
        if name == "embedding" and self._theta_bytes:
            options.add_external_initializers_from_files_in_memory(
                [THETA], [self._theta_bytes], [len(self._theta_bytes)]
            )
        try:
            with steady():
                return onnxruntime.InferenceSession(graphs[name], options, providers=["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime's errors share no base class
            raise BundleError(f"onnxruntime cannot load the graph {name!r}: {error}") from error

    def _check_places(self, graphs: Mapping[str, bytes], *, built: bool) -> None:
        """Raise :class:`BundleError` where a graph keeps a tensor in any other file than theta."""
        for name, graph in graphs.items():
            of_theta = (THETA, len(self._theta_bytes)) if name == "embedding" else ("", 0)
            check_external(name, graph, file=of_theta[0], size=of_theta[1], built=built)

    def embed(self, views: Float32) -> Float32:
        """Embed views, float32 (n, ...) -> float32 (n, d) of unit rows.

        Raises:
            BundleError: the views do not fit the graph, or an embedding has no direction (zero or not finite).
        """
        if not len(views):
            return np.empty((0, self.manifest.dimension), np.float32)
        (z,) = self._run(views, "z")
        return self._directions(z, len(views))

    def embed_with_spans(self, views: Float32) -> tuple[Float32, Float32 | None]:
        """:meth:`embed`, and what the graph makes of the spans of all views, float32 (k, d), not of unit length.

        The spans are ``None`` where the graph gives none.

        Raises:
            BundleError: as :meth:`embed`, or the spans are not finite.
        """
        if not len(views) or all(output.name != SPANS for output in self.session().get_outputs()):
            return self.embed(views), None
        z, found = self._run(views, "z", SPANS)
        spans = found.reshape(-1, found.shape[-1])
        if not np.isfinite(spans).all():
            raise BundleError("the model gave spans that are not finite")
        return self._directions(z, len(views)), spans

    def _run(self, views: Float32, *outputs: str) -> list[Float32]:
        """The outputs for float32 (n, ...) views, which go through the graph some at a time."""
        session = self.session()
        try:
            parts = [session.run(list(outputs), {"views": part}) for part in in_batches(views)]
        except Exception as error:  # onnxruntime's errors share no base class
            raise BundleError(f"the graph does not take views {views.dtype} {views.shape}: {error}") from error
        return [np.concatenate([np.asarray(part, np.float32) for part in found]) for found in zip(*parts, strict=True)]

    def _directions(self, z: Float32, count: int) -> Float32:
        if z.shape != (count, self.manifest.dimension):
            raise BundleError(f"embeddings have shape {z.shape}, expected {(count, self.manifest.dimension)}")
        return _unit(z)

    def embedding(self, views: Float32) -> Float32:
        """One unit vector, float32 (d,): the :func:`direction` of the unit rows of :meth:`embed`."""
        return np.asarray(self.embeddings([views])[0], np.float32)

    @property
    def _in_8_bits(self) -> bool:
        return self.manifest.preprocessing.get("recurrent") == "int8"

    def embeddings(self, samples: Sequence[Float32]) -> Float32:
        """:meth:`embedding` of several samples' views, float32 (m, d).

        All views share batches, which a recurrent graph computes three times faster than one sample after another;
        unless it computes in 8 bits, where views that share a batch share a scale, and no sample may depend on
        another; or the views are of different lengths.
        """
        if not samples or any(len(views) == 0 for views in samples):
            raise BundleError("an embedding needs at least one view")
        if self._in_8_bits:
            return np.stack([direction(self.embed(views)) for views in samples])
        if any(views.shape[1:] != samples[0].shape[1:] for views in samples):
            return np.stack([direction(self.embed(views)) for views in samples])
        rows = self.embed(np.concatenate(samples))
        ends = np.cumsum([len(views) for views in samples])
        return np.stack([direction(part) for part in np.split(rows, ends[:-1])])


class _Sessions:
    """The sessions of a model in this process; a forked child builds its own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._built: dict[tuple[str, int], onnxruntime.InferenceSession] = {}
        in_child(self, _Sessions._renew)

    def get(
        self, name: str, threads: int, build: Callable[[str, int], onnxruntime.InferenceSession]
    ) -> onnxruntime.InferenceSession:
        with self._lock:
            session = self._built.get((name, threads))
            if session is None:
                session = self._built[name, threads] = build(name, threads)
        return session

    def _renew(self) -> None:
        for session in self._built.values():
            # Never destroyed here: it would wait for its threads, which only the parent has.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(session))
        self._lock, self._built = threading.Lock(), {}


def _bundle(
    kind: type[Bundle], parts: tuple[Any, ...], named: Mapping[str, Any], signature: Mapping[str, Any]
) -> Bundle:
    bundle = kind(*parts, **named)
    bundle.__dict__.update(signature)
    return bundle


def _allowed(kind: str) -> set[str]:
    """The graphs that a bundle of this modality may carry beside the one that embeds."""
    found = modality.get(kind)
    return {*found.graphs, *found.checks}


def in_batches(views: Float32) -> Iterator[Float32]:
    """Views (n, ...) some at a time: at most :data:`_BATCH`, and no more than a graph has room for.

    What a graph holds while it computes grows with the batch, and onnxruntime keeps it: CAM++ in float32 held 600 MB
    after 32 views of 3 s, 210 MB after two, which it computes a third faster.

    >>> [len(part) for part in in_batches(np.empty((70, 8, 8), np.float32))]
    [32, 32, 6]
    >>> [len(part) for part in in_batches(np.empty((7, 300, 80), np.float32))]
    [3, 3, 1]
    """
    size = max(1, min(_BATCH, _BATCH_VALUES // max(math.prod(views.shape[1:]), 1)))
    return (views[start : start + size] for start in range(0, len(views), size))


def direction(rows: Float32) -> Float32:
    """The unit vector, float32 (d,), along the mean of float32 (n, d) unit rows.

    Raises:
        BundleError: the rows cancel out.
    """
    return _unit(rows.mean(axis=0, dtype=np.float32))


def shipped(name: str = "digits") -> Bundle:
    """A bundle that comes inside the package, for a first try without any download.

    Raises:
        UnknownNameError: no bundle of that name is shipped.
    """
    folder = importlib.resources.files("uvsdk") / "data"
    names = sorted(entry.name.removesuffix(".uvb") for entry in folder.iterdir() if entry.name.endswith(".uvb"))
    if name not in names:
        raise UnknownNameError(f"no bundle {name!r} is shipped; there are {', '.join(names)}")
    return Bundle.from_bytes((folder / f"{name}.uvb").read_bytes())


def _unit(vectors: Float32) -> Float32:
    norms = np.linalg.norm(vectors, axis=-1, keepdims=True)
    if not np.isfinite(norms).all() or (norms <= 1e-12).any():
        raise BundleError("the model gave an embedding without a direction (all zero or not finite)")
    return np.asarray(vectors / norms, np.float32)
