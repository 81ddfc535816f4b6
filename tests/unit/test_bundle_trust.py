"""Somebody who may write files exchanges what decides: whoever has a root of trust notices, on every path."""

from __future__ import annotations

import io
import json
import struct
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tests.builders import open_store
from tests.unit.conftest import IMPOSTORS, MakeBundle, Numbers
from tests.unit.test_calibrating import people as observations
from uvsdk import identify, verify
from uvsdk.bundle import Bundle, shipped
from uvsdk.bundle.archive import pack_members, read_members
from uvsdk.bundle.manifest import Manifest, Parameter
from uvsdk.bundle.presentation_graph import PresentationGraph
from uvsdk.cli import main
from uvsdk.enroll import enroll
from uvsdk.errors import BundleError, ExchangedBundleError, ModelMismatchError, UntrustedBundleError
from uvsdk.evaluation import calibrating
from uvsdk.modality import get
from uvsdk.privacy import bundle_signing
from uvsdk.scoring import Calibration, Decision, fuse
from uvsdk.templates.gallery import Gallery
from uvsdk.templates.storage import MemoryStore
from uvsdk_device.acceptance import KEPT, accepted_models
from uvsdk_device.keystore import EncryptedStore
from uvsdk_device.reembedding import is_current
from uvsdk_device.runtime import Runtime

# As low as three people could score: what a forger would choose who knows what is checked at opening.
FORGED = np.linspace(-0.6, -0.4, 1000, dtype=np.float32)
ANA = [b"1 0 0", b"1 0 0.1", b"1 0 -0.1"]
STRANGER = b"0 1 0"
PUBLISHER, SOMEBODY = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
TRUSTED = [PUBLISHER.public_key()]
FACE = get("face").conditions
DETECTOR = PresentationGraph("face-antispoof", b"a detector", 80, 2.7, 0, 0.5, "made by hand")


@pytest.fixture(scope="module")
def fitted() -> Calibration:
    return calibrating.fit(observations(30, kinds=FACE), model_version="m", source="numbers").calibration


def whole(fitted: Calibration, **changes: object) -> Bundle:
    """A bundle with a member of every kind; ``changes`` are its parts: graphs, theta, calibration, presentation."""
    manifest = Manifest("face", "toy", 2, {"size": 8}, (Parameter("w", (2, 3)),), ("us",))
    graphs = {"embedding": b"embeds", "detector": b"looks"}
    parts = {"graphs": graphs, "theta": np.arange(6, dtype=np.float32), "calibration": fitted, "detector": DETECTOR}
    parts |= changes
    bundle = Bundle(manifest, parts["theta"], parts["graphs"], presentation=parts["detector"])  # type: ignore[arg-type]
    measured = parts["calibration"]
    if measured is None:
        return bundle
    assert isinstance(measured, Calibration)
    return bundle.with_calibration(replace(measured, model_version=bundle.version))


def exchanged(fitted: Calibration) -> dict[str, Bundle]:
    """For each member a bundle in which only that one is another, with a manifest and a version that fit."""
    graphs = {"embedding": b"embeds", "detector": b"looks"}
    other = replace(fitted, impostor=FORGED, ratio=None)
    return {
        **{f"{name}.onnx": whole(fitted, graphs=graphs | {name: b"other"}) for name in graphs},
        "theta.f32": whole(fitted, theta=np.ones(6, np.float32)),
        "calibration.bin": whole(fitted, calibration=replace(fitted, source="others")),
        "impostors.f32 in place of calibration.bin": whole(fitted, calibration=other),
        "presentation.onnx": whole(fitted, detector=replace(DETECTOR, graph=b"sees nothing")),
        "the detector's threshold": whole(fitted, detector=replace(DETECTOR, threshold=-1e9)),
        "no detector.onnx": whole(fitted, graphs={"embedding": b"embeds"}),
        "no calibration.bin": whole(fitted, calibration=None),
        "no presentation.onnx": whole(fitted, detector=None),
    }


MEMBERS = sorted(exchanged(calibrating.fit(observations(12, kinds=FACE), model_version="m", source="").calibration))


def test_the_digest_is_over_everything_and_the_version_over_what_embeds(fitted: Calibration) -> None:
    bundle, others = whole(fitted), exchanged(fitted)
    digests = {bundle.digest, *(other.digest for other in others.values())}
    assert len(digests) == 1 + len(others)
    assert Bundle.from_bytes(bundle.to_bytes()).digest == bundle.digest == bundle.sign(PUBLISHER).digest
    same = {name for name, other in others.items() if other.version == bundle.version}
    assert same == {name for name in others if "calib" in name or "presentation" in name or "detector's" in name}
    words = Bundle(
        replace(bundle.manifest, sources=("others",)), bundle.theta, bundle.graphs, presentation=bundle.presentation
    ).with_calibration(bundle.calibration)
    assert (words.version, words.digest != bundle.digest) == (bundle.version, True)


@pytest.mark.parametrize("member", MEMBERS)
def test_a_signature_covers_every_member(fitted: Calibration, member: str) -> None:
    signed, other = whole(fitted).sign(PUBLISHER, issuer="clinic"), exchanged(fitted)[member]
    opened = Bundle.from_bytes(signed.to_bytes(), trusted=TRUSTED)
    assert opened.signed_by == opened.signature.key_id  # type: ignore[union-attr]
    with pytest.raises(UntrustedBundleError, match="not signed"):
        Bundle.from_bytes(other.to_bytes(), trusted=TRUSTED)
    # The signature of the right bundle under the wrong one is refused whether or not anybody asks for one.
    other.signature = signed.signature
    with pytest.raises(UntrustedBundleError, match="not the one that the key"):
        Bundle.from_bytes(other.to_bytes())
    with pytest.raises(UntrustedBundleError, match="none of those that are trusted"):
        Bundle.from_bytes(other.sign(SOMEBODY).to_bytes(), trusted=TRUSTED)


def test_who_says_so_is_signed_too(fitted: Calibration) -> None:
    signed = whole(fitted).sign(PUBLISHER, issuer="clinic")
    assert signed.signature is not None
    signed.signature = replace(signed.signature, issuer="hospital")
    with pytest.raises(UntrustedBundleError):
        Bundle.from_bytes(signed.to_bytes())
    for change in (signed.with_calibration(None), signed.with_theta(np.ones(6, np.float32)), signed.without_cohort()):
        assert change is signed or change.signature is None


def members_of(bundle: Bundle) -> dict[str, bytes]:
    return read_members(bundle.to_bytes())


def test_every_member_raw(fitted: Calibration) -> None:
    """Exchanged, flipped, dropped and added without the manifest knowing, and signed bundles in the same way."""
    signed = whole(fitted).sign(PUBLISHER)
    members = members_of(signed)
    assert len(members) == 7
    for name, body in members.items():
        flipped = bytearray(body)
        flipped[len(body) // 2] ^= 1
        for changed in (bytes(flipped), body + b"\0", body[:-1], b""):
            with pytest.raises(BundleError):
                Bundle.from_bytes(pack_members(members | {name: changed}))
        without = {other: data for other, data in members.items() if other != name}
        if name == "signature.json":
            assert Bundle.from_bytes(pack_members(without)).signature is None
            with pytest.raises(UntrustedBundleError):
                Bundle.from_bytes(pack_members(without), trusted=TRUSTED)
        else:
            with pytest.raises(BundleError):
                Bundle.from_bytes(pack_members(without))
    bare = members_of(whole(fitted, calibration=None, detector=None))
    for name in ("calibration.bin", "impostors.f32", "presentation.onnx"):
        with pytest.raises(BundleError):
            Bundle.from_bytes(pack_members(bare | {name: members.get(name, IMPOSTORS.tobytes())}))


def appended(data: bytes, name: str, body: bytes) -> bytes:
    file = io.BytesIO(data)
    with zipfile.ZipFile(file, "a") as archive:
        archive.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), body)
    return file.getvalue()


def written(members: dict[str, bytes], change: Callable[[zipfile.ZipInfo], None], *, comment: bytes = b"") -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.comment = comment
        for name, body in members.items():
            entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            change(entry)
            archive.writestr(entry, body)
    return file.getvalue()


def streamed(members: dict[str, bytes]) -> bytes:
    """Written to something that cannot seek, so sizes and checksums follow each member in a data descriptor."""

    class Pipe(io.RawIOBase):
        def __init__(self) -> None:
            self.data = bytearray()

        def writable(self) -> bool:
            return True

        def write(self, piece: object) -> int:
            self.data += bytes(piece)  # type: ignore[call-overload]
            return len(bytes(piece))  # type: ignore[call-overload]

    pipe = Pipe()
    with zipfile.ZipFile(pipe, "w") as archive:  # type: ignore[arg-type]
        for name, body in members.items():
            archive.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), body)
    return bytes(pipe.data)


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_nothing_rides_along_in_the_archive(fitted: Calibration) -> None:
    bundle = whole(fitted)
    data, members = bundle.to_bytes(), members_of(bundle)
    end = data.rindex(b"PK\x05\x06")

    def extra(entry: zipfile.ZipInfo) -> None:
        entry.extra = struct.pack("<HH4s", 0x7875, 4, b"abcd")

    def remark(entry: zipfile.ZipInfo) -> None:
        entry.comment = b"remark"

    def mode(entry: zipfile.ZipInfo) -> None:
        entry.external_attr = 0o777 << 16

    assert Bundle.from_bytes(written(members, lambda _: None)).digest == bundle.digest
    tricks = {
        "behind": data + b"\0",
        "before": b"PK\x03\x04" + data,
        "between members and directory": data[: data.index(b"PK\x01\x02")] + b"x" + data[data.index(b"PK\x01\x02") :],
        "a second end": data + data[end:],
        "two archives": data + data,
        "a comment": written(members, lambda _: None, comment=b"hello"),
        "an extra field": written(members, extra),
        "a member's comment": written(members, remark),
        "permissions": written(members, mode),
        "another order": written(dict(reversed(members.items())), lambda _: None),
        "data descriptors": streamed(members),
        "a folder": appended(data, "graphs/", b""),
        **{f"{name} twice": appended(data, name, body) for name, body in members.items()},
        **{f"{name} in capitals": appended(data, name.upper(), body) for name, body in members.items()},
        **{f"./{name}": appended(data, f"./{name}", body) for name, body in members.items()},
    }
    for trick in tricks.values():
        with pytest.raises(BundleError):
            Bundle.from_bytes(trick)


def test_the_manifest_is_what_is_written_and_no_more(fitted: Calibration) -> None:
    members = members_of(whole(fitted))
    record = json.loads(members["manifest.json"])
    text = members["manifest.json"].decode()
    for changed in (
        json.dumps(record, sort_keys=True),
        json.dumps(record | {"note": "hello"}, indent=1, sort_keys=True, ensure_ascii=False),
        text.replace('"format": 1', '"format": 1,\n "format": 1'),
        text + "\n",
        text.replace('"size": 8\n', '"size": NaN\n', 1),
    ):
        assert changed != text
        with pytest.raises(BundleError):
            Bundle.from_bytes(pack_members(members | {"manifest.json": changed.encode()}))


# Calibrations that nobody can have measured


def test_the_published_forgery_does_not_open(identity_bundle: MakeBundle) -> None:
    bundle = identity_bundle(IMPOSTORS)
    assert bundle.calibration is not None
    assert bundle.calibration.threshold(0.01).score == pytest.approx(0.49, abs=0.005)
    low = Calibration(np.linspace(-1, -0.9, 1000, dtype=np.float32), bundle.version, "forged")
    assert low.threshold(0.01).score == pytest.approx(-0.9, abs=0.005)
    with pytest.raises(BundleError, match=r"average -0\.95"):
        bundle.with_calibration(low).to_bytes()
    forged = members_of(bundle) | {"impostors.f32": low.impostor.tobytes()}
    with pytest.raises(BundleError, match="fetch the bundle again"):
        Bundle.from_bytes(pack_members(forged))


@pytest.mark.parametrize(
    "change",
    [
        {"highest": 40.0},
        {"lowest": 1.0},
        {"offset": 6.0},
        {"trials": 2},
        {"impostor": np.linspace(3, 5, 100, dtype=np.float32)},
        {"impostor": np.full(100, -30.0, np.float32)},
        {"limits": np.array([[-0.95, -0.9], [-3.0, -2.0]])},
        {"limits": np.array([[0.0, 0.1], [1.0, 2.0]])},
    ],
    ids=str,
)
def test_a_ratio_that_contradicts_itself_does_not_open(fitted: Calibration, change: dict[str, object]) -> None:
    assert fitted.ratio is not None
    forged = replace(fitted, ratio=replace(fitted.ratio, **change))  # type: ignore[arg-type]
    with pytest.raises(BundleError, match="contradicts itself"):
        whole(fitted, calibration=forged).to_bytes()


# The forgery that does open, on every path that has a root of trust


@pytest.fixture
def genuine(identity_bundle: MakeBundle) -> Bundle:
    return identity_bundle(IMPOSTORS)


@pytest.fixture
def forged(identity_bundle: MakeBundle) -> Bundle:
    bundle = identity_bundle(FORGED)
    assert Bundle.from_bytes(bundle.to_bytes()).calibration is not None
    return bundle


def test_a_template_is_not_compared_under_another_calibration(genuine: Bundle, forged: Bundle) -> None:
    store = MemoryStore()
    template = enroll("ana", ANA, model=genuine, store=store).template
    assert template.threshold is not None
    assert genuine.calibration is not None
    assert forged.calibration is not None
    assert template.threshold.calibration == genuine.calibration.digest
    assert forged.version == genuine.version
    bare = genuine.with_calibration(None)
    for model in (forged, bare):
        with pytest.raises(ExchangedBundleError, match="use the bundle the person was enrolled with"):
            verify(STRANGER, template, model=model)
        assert not is_current(template, model)
    with pytest.raises(ExchangedBundleError):
        verify(STRANGER, template, model=forged, fmr=0.01)
    with pytest.raises(ExchangedBundleError):
        identify(STRANGER, Gallery.from_store(store), model=forged)
    assert identify(STRANGER, Gallery.from_store(store), model=genuine).outcome == "rejected"
    # Who hands in a threshold that was read from the new calibration has accepted it.
    renewed = forged.calibration.threshold(0.01)
    assert verify(b"1 0 0", template, model=forged, threshold=renewed).threshold == renewed
    with pytest.raises(ExchangedBundleError):
        verify(STRANGER, template, model=forged, threshold=replace(renewed, scale="llr", calibration=""))


def test_a_gallery_forgets_the_calibration_of_who_leaves(genuine: Bundle, forged: Bundle) -> None:
    store = MemoryStore()
    enroll("ana", ANA, model=genuine, store=store)
    enroll("ben", ANA, model=forged, store=store)
    gallery = Gallery.from_store(store)
    assert len(gallery.calibrations) == 2
    gallery.remove("ben")
    gallery.add("ana", store.template("ana"))
    assert gallery.calibrations == {store.template("ana").threshold.calibration}  # type: ignore[union-attr]
    gallery.remove("ana")
    assert not gallery.calibrations


def test_fused_decisions_take_the_calibrations_they_were_made_under(fitted: Calibration) -> None:
    decision = Decision(0.5, fitted.threshold(0.05, "llr"), "m", llr=1.0)
    another = replace(decision, score=0.4)
    assert fuse([decision, another], fmr=0.05, calibrations=[fitted, fitted]).llr == 2.0
    with pytest.raises(ExchangedBundleError):
        fuse([decision, another], fmr=0.05, calibrations=[fitted, replace(fitted, source="others")])


def test_a_store_works_with_the_model_it_met_first(store: EncryptedStore, genuine: Bundle, forged: Bundle) -> None:
    enroll("ana", ANA, model=genuine, store=store)
    constant = forged.with_calibration(None)  # any other digest
    for model in (forged, constant):
        with pytest.raises(ExchangedBundleError, match="accept it: uvsdk store --accept-model"):
            Runtime(store, model)
        with pytest.raises(ExchangedBundleError):
            enroll("eve", [STRANGER] * 3, model=model, store=store)
    assert store.users() == ("ana",)
    assert not Runtime(store, genuine).verify("ana", STRANGER).accepted
    # Accepted by name, templates follow, and the bundle from before goes on being one this store works with.
    store.accept_model(forged)
    assert Runtime(store, forged).template("ana").threshold.score < -0.39  # type: ignore[union-attr]
    assert Runtime(store, genuine).template("ana").threshold.score > 0.48  # type: ignore[union-attr]


def test_a_store_notices_after_it_was_opened_again_and_while_it_runs(
    tmp_path: Path, store: EncryptedStore, genuine: Bundle, forged: Bundle
) -> None:
    early = Runtime(store, forged)  # nobody is enrolled, so there is nothing to compare it with yet
    enroll("ana", ANA, model=genuine, store=store)
    with pytest.raises(ExchangedBundleError):
        early.verify("ana", STRANGER)
    again = EncryptedStore.open(tmp_path / "store", passphrase="p")
    with pytest.raises(ExchangedBundleError):
        Runtime(again, forged)


def test_models_that_training_makes_do_not_push_out_what_somebody_accepted(
    store: EncryptedStore, genuine: Bundle, identity_bundle: MakeBundle
) -> None:
    store.accept_model(genuine)
    made = [identity_bundle(IMPOSTORS, name=f"round {number}") for number in range(KEPT + 3)]
    for bundle in made:
        store.accept_model(Bundle.from_bytes(bundle.sign(PUBLISHER).to_bytes(), trusted=TRUSTED))
    assert store.check_model(genuine)
    assert store.check_model(made[-1])
    with pytest.raises(ExchangedBundleError):
        store.check_model(made[0])
    # Signed and accepted by name as well, it stays.
    store.accept_model(made[-1])
    store.accept_model(Bundle.from_bytes(made[-1].sign(PUBLISHER).to_bytes(), trusted=TRUSTED))
    assert not accepted_models(store, "numbers")[-1].signed_by


def test_removing_the_record_makes_no_other_bundle_the_first(
    store: EncryptedStore, genuine: Bundle, forged: Bundle, identity_bundle: MakeBundle
) -> None:
    enroll("ana", ANA, model=genuine, store=store)
    (record,) = (store.folder / "shared").glob("accepted*")
    record.unlink()
    for model in (forged, identity_bundle(FORGED, name="newer"), genuine.with_calibration(None)):
        with pytest.raises(ExchangedBundleError, match="people in this store were enrolled with"):
            Runtime(store, model)
        with pytest.raises(ExchangedBundleError):
            enroll("eve", [STRANGER] * 3, model=model, store=store)
    assert Runtime(store, genuine).verify("ana", b"1 0 0").accepted
    assert record.exists()


def test_what_a_trusted_publisher_signed_needs_no_other_word(
    store: EncryptedStore, genuine: Bundle, forged: Bundle
) -> None:
    enroll("ana", ANA, model=genuine, store=store)
    newer = Bundle.from_bytes(forged.sign(PUBLISHER).to_bytes(), trusted=TRUSTED)
    assert Runtime(store, newer).verify("ana", b"1 0 0").accepted
    # The signature alone, which nobody asked for, vouches for nothing.
    unasked = Bundle.from_bytes(genuine.with_calibration(None).sign(SOMEBODY).to_bytes())
    with pytest.raises(ExchangedBundleError):
        Runtime(store, unasked)


def test_a_store_of_an_earlier_version_takes_its_first_model_on_trust(
    store: EncryptedStore, genuine: Bundle, forged: Bundle
) -> None:
    memory = MemoryStore()
    template = enroll("ana", ANA, model=genuine, store=memory).template
    store.save_enrolment("ana", template, memory.features("ana"))
    assert Runtime(store, genuine).verify("ana", b"1 0 0").accepted
    with pytest.raises(ExchangedBundleError):
        Runtime(store, forged)


def test_another_model_version_is_another_model(genuine: Bundle, identity_bundle: MakeBundle) -> None:
    template = enroll("ana", ANA, model=genuine, store=MemoryStore()).template
    with pytest.raises(ModelMismatchError):
        verify(STRANGER, template, model=identity_bundle(FORGED, name="newer"))


# The command line


def test_key_sign_verify_show(tmp_path: Path, genuine: Bundle, capsys: pytest.CaptureFixture[str]) -> None:
    model, key = tmp_path / "model.uvb", tmp_path / "publisher.key"
    genuine.save(model)
    assert main(["bundle", "key", str(key)]) == 0
    assert key.stat().st_mode & 0o777 == 0o600
    assert main(["bundle", "key", str(key)]) == 1  # a key never replaces a file
    public = str(tmp_path / "publisher.key.pub")
    assert main(["bundle", "verify", str(model), "--trusted", public]) == 1
    assert "not signed" in capsys.readouterr().err
    assert main(["bundle", "sign", str(model), "--key", str(key), "--issuer", "clinic"]) == 0
    assert main(["bundle", "verify", str(model), "--trusted", public]) == 0
    said = capsys.readouterr().out
    assert f"bundle digest  {genuine.digest}" in said
    assert f"calibration    {genuine.calibration.digest}" in said  # type: ignore[union-attr]
    assert "the key is one of those trusted" in said
    assert main(["bundle", "show", str(model)]) == 0
    assert "whether the key is to be trusted" in capsys.readouterr().out
    assert main(["bundle", "verify", str(model), "--trusted", str(key)]) == 1
    assert "no Ed25519 public key" in capsys.readouterr().err
    assert bundle_signing.read_public_key(public) == bundle_signing.read_private_key(key).public_key()


def test_what_is_signed_to_be_handed_out_holds_nobody(
    tmp_path: Path, fitted: Calibration, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = calibrating.fit(
        observations(12, kinds=FACE), model_version="m", source="people", keep_cohort=True
    ).calibration
    model, key = str(tmp_path / "model.uvb"), str(tmp_path / "key")
    whole(fitted, calibration=kept).save(model)
    assert main(["bundle", "key", key]) == 0
    assert main(["bundle", "show", model]) == 0
    assert "embeddings of 12 people, as personal as their templates" in " ".join(capsys.readouterr().out.split())
    assert main(["bundle", "sign", model, "--key", key]) == 1
    assert "leave them out with `uvsdk bundle strip`" in capsys.readouterr().err
    assert main(["bundle", "sign", model, "--key", key, "--with-cohort", "-o", str(tmp_path / "whole.uvb")]) == 0
    assert main(["bundle", "strip", model]) == 0
    assert main(["bundle", "sign", model, "--key", key]) == 0
    assert Bundle.open(model).calibration.cohort is None  # type: ignore[union-attr]
    assert Bundle.open(tmp_path / "whole.uvb").calibration.cohort is not None  # type: ignore[union-attr]
    assert shipped().calibration.cohort is None  # type: ignore[union-attr]


def test_exchanged_on_disk_between_two_commands(
    tmp_path: Path, genuine: Bundle, forged: Bundle, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("UVSDK_PASSPHRASE", "p")
    monkeypatch.setattr("tests.unit.conftest.Numbers.prepare", _by_path(tmp_path))
    model, where = str(tmp_path / "model.uvb"), ["--store", str(tmp_path / "store")]
    genuine.save(model)
    open_store(tmp_path / "store")
    files = []
    for number, body in enumerate([*ANA, STRANGER]):
        (tmp_path / f"{number}").write_bytes(body)
        files.append(str(tmp_path / f"{number}"))
    assert main(["enroll", "ana", *files[:3], "--model", model, *where]) == 0
    assert main(["verify", "ana", files[3], "--model", model, *where]) == 3
    forged.save(model)
    capsys.readouterr()
    for command in (
        ["verify", "ana", files[3]],
        ["verify", "ana", files[3], "--fmr", "0.01"],
        ["identify", files[3]],
        ["enroll", "eve", *files[:3]],
        ["agent", "--port", "0"],
    ):
        assert main([*command, "--model", model, *where]) == 1
        assert "is not the one this store works with" in capsys.readouterr().err
    assert main(["store", "--accept-model", model, *where]) == 0
    assert main(["verify", "ana", files[3], "--model", model, *where]) == 0  # the owner said so
    assert main(["verify", "ana", files[0], "--model", model, "--publisher", model, *where]) == 1


def _by_path(folder: Path) -> Callable[..., object]:
    original = Numbers.prepare

    def prepare(self: Numbers, sample: object, bundle: object, **rest: object) -> object:
        if isinstance(sample, str) and Path(sample).parent == folder:
            sample = Path(sample).read_bytes()
        return original(self, sample, bundle, **rest)  # type: ignore[arg-type]

    return prepare
