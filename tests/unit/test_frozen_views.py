"""What a device keeps of the frozen part's outputs: sealed, bound, bounded, made anew where it cannot be trusted."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from tests.builders import open_store
from uvsdk.arrays import Array
from uvsdk.bundle import Bundle, shipped
from uvsdk.bundle.frozen import FrozenPart, FrozenViews
from uvsdk.errors import BundleError, SettingsError, StoreFullError, UnknownUserError
from uvsdk.federation.messages import TrainingConfig
from uvsdk.templates.template import Template
from uvsdk.training import backbones
from uvsdk.training.export import export_bundle
from uvsdk_device import EncryptedStore, frozen_views
from uvsdk_device.deployment import Deployment, check_fit
from uvsdk_device.frozen_views import forget_frozen_views

USER = "ada"


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    return export_bundle(backbones.get("digits-cnn", "head").random(1))


@pytest.fixture
def features() -> tuple[Array, ...]:
    return tuple(np.random.default_rng(0).random((3, 8, 8), np.float32))


@pytest.fixture
def store(tmp_path: Path, features: tuple[Array, ...]) -> EncryptedStore:
    found = open_store(tmp_path / "store")
    vector = np.eye(shipped().manifest.dimension, dtype=np.float32)[0]
    found.save_enrolment(USER, Template(vector, shipped().version, "handwriting", 3), features)
    return found


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[Array]:
    """The samples that were put through the frozen part."""
    seen: list[Array] = []
    call = FrozenPart.__call__

    def counted(self: FrozenPart, features: Array, *, crops: int = 8) -> FrozenViews:
        seen.append(features)
        return call(self, features, crops=crops)

    monkeypatch.setattr(FrozenPart, "__call__", counted)
    return seen


def deployment(name: str = "clinic") -> Deployment:
    return Deployment(
        name=name,
        config=TrainingConfig(name, "handwriting", "digits-cnn", "fedaws", train="head"),
        server_key_id="k" * 32,
        server_public_key=X25519PrivateKey.generate().public_key(),
        server_signing_key=Ed25519PrivateKey.from_private_bytes(bytes(32)).public_key(),
        model_version="m" * 64,
        modality="handwriting",
        needs=(),
        edge_only=False,
    )


def record_of(store: EncryptedStore) -> Path:
    (path,) = (store.folder / "users").glob("*/frozen-views.*")
    return path


def equal(one: tuple[FrozenViews, ...], other: tuple[FrozenViews, ...]) -> bool:
    return all(
        np.array_equal(a.inference, b.inference) and np.array_equal(a.crops, b.crops)
        for a, b in zip(one, other, strict=True)
    )


def test_a_sample_is_computed_once_whatever_theta_becomes(
    store: EncryptedStore, bundle: Bundle, features: tuple[Array, ...], computed: list[Array]
) -> None:
    first = frozen_views.frozen_views(store, USER, deployment=deployment(), features=features, bundle=bundle)
    assert len(computed) == 3
    written = record_of(store).stat().st_mtime_ns
    later = bundle.with_theta(bundle.theta + np.float32(1))
    again = frozen_views.frozen_views(store, USER, deployment=deployment(), features=features, bundle=later)
    assert len(computed) == 3
    assert record_of(store).stat().st_mtime_ns == written
    assert equal(first, again)
    assert equal(first, tuple(FrozenPart(bundle)(item) for item in features))


def test_only_what_is_new_is_computed_and_what_is_gone_is_dropped(
    store: EncryptedStore, bundle: Bundle, features: tuple[Array, ...], computed: list[Array]
) -> None:
    frozen_views.frozen_views(store, USER, deployment=deployment(), features=features, bundle=bundle)
    fourth = np.random.default_rng(9).random((8, 8), np.float32)
    size = record_of(store).stat().st_size
    found = frozen_views.frozen_views(
        store, USER, deployment=deployment(), features=(fourth, features[1], features[1]), bundle=bundle
    )
    assert len(computed) == 4
    assert np.array_equal(computed[-1], fourth)
    assert found[1] is found[2]
    assert record_of(store).stat().st_size < size  # two samples, not three or five


def test_another_frozen_part_is_not_trained_on_what_is_left_of_the_former(
    store: EncryptedStore, bundle: Bundle, features: tuple[Array, ...], computed: list[Array]
) -> None:
    first = frozen_views.frozen_views(store, USER, deployment=deployment(), features=features, bundle=bundle)
    other = export_bundle(backbones.get("digits-cnn", "head").random(2))
    second = frozen_views.frozen_views(store, USER, deployment=deployment(), features=features, bundle=other)
    assert len(computed) == 6
    assert not equal(first, second)
    assert len(list((store.folder / "users").glob("*/frozen-views.*"))) == 1


@pytest.mark.parametrize("damage", ["cut short", "flipped", "emptied", "of another format", "another count of crops"])
def test_what_is_damaged_is_made_again(
    damage: str,
    store: EncryptedStore,
    bundle: Bundle,
    features: tuple[Array, ...],
    computed: list[Array],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = frozen_views.frozen_views(store, USER, deployment=deployment(), features=features, bundle=bundle)
    path = record_of(store)
    body = bytearray(path.read_bytes())
    if damage == "cut short":
        path.write_bytes(body[:-1])
    elif damage == "flipped":
        body[len(body) // 2] ^= 1
        path.write_bytes(body)
    elif damage == "emptied":
        path.write_bytes(b"")
    elif damage == "of another format":
        store.put("frozen-views", [b"no message"], name=deployment().identity, user=USER)
    else:
        monkeypatch.setattr(frozen_views, "CROPS", 9)
    again = frozen_views.frozen_views(store, USER, deployment=deployment(), features=features, bundle=bundle)
    assert len(computed) == 6
    assert equal(first, again)


def test_it_is_sealed_in_the_users_folder_and_goes_with_the_user(
    store: EncryptedStore, bundle: Bundle, features: tuple[Array, ...]
) -> None:
    found = frozen_views.frozen_views(store, USER, deployment=deployment(), features=features, bundle=bundle)
    stored = record_of(store).read_bytes()
    for item in found:
        for row in (*item.inference, *item.crops):
            assert row[:8].tobytes() not in stored
    assert FrozenPart(bundle).digest.encode() not in stored
    assert record_of(store).stat().st_mode & 0o777 == 0o600
    store.delete(USER)
    assert list(store.folder.glob("users/*")) == []
    with pytest.raises(UnknownUserError):  # a round that was under way brings nothing back
        frozen_views.frozen_views(store, USER, deployment=deployment(), features=features, bundle=bundle)
    assert list(store.folder.glob("users/*")) == []


def test_each_server_has_its_own_and_leaving_drops_it(
    store: EncryptedStore, bundle: Bundle, features: tuple[Array, ...]
) -> None:
    for name in ("clinic", "bank"):
        frozen_views.frozen_views(store, USER, deployment=deployment(name), features=features, bundle=bundle)
    assert len(list((store.folder / "users").glob("*/frozen-views.*"))) == 2
    forget_frozen_views(store, USER, deployment("bank"))
    forget_frozen_views(store, USER, deployment("bank"))
    assert record_of(store).exists()


def test_more_than_the_limit_is_computed_every_time(
    store: EncryptedStore,
    bundle: Bundle,
    features: tuple[Array, ...],
    computed: list[Array],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A sample has 1 + 8 views of 512 float32 values.
    monkeypatch.setattr(frozen_views, "LIMIT_BYTES", 3 * 9 * 512 * 4 - 1)
    for _ in range(2):
        frozen_views.frozen_views(store, USER, deployment=deployment(), features=features, bundle=bundle)
    assert len(computed) == 6
    assert list((store.folder / "users").glob("*/frozen-views.*")) == []
    monkeypatch.setattr(frozen_views, "LIMIT_BYTES", 3 * 9 * 512 * 4)
    frozen_views.frozen_views(store, USER, deployment=deployment(), features=features, bundle=bundle)
    assert record_of(store).exists()


def test_a_full_disk_costs_time_and_nothing_else(
    store: EncryptedStore, bundle: Bundle, features: tuple[Array, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise StoreFullError("no space")

    monkeypatch.setattr(EncryptedStore, "put", full)
    assert len(frozen_views.frozen_views(store, USER, deployment=deployment(), features=features, bundle=bundle)) == 3


def test_a_model_that_does_not_fit_the_deployment(
    store: EncryptedStore, bundle: Bundle, features: tuple[Array, ...]
) -> None:
    with pytest.raises(BundleError, match="none of it frozen"):
        frozen_views.frozen_views(store, USER, deployment=deployment(), features=features, bundle=shipped())
    check_fit("handwriting", bundle, deployment=deployment())
    check_fit("handwriting", None, deployment=deployment())
    with pytest.raises(SettingsError, match="'all' is trained, the server trains 'head'"):
        check_fit("handwriting", shipped(), deployment=deployment())
    whole = dataclasses.replace(deployment(), config=TrainingConfig("d", "handwriting", "digits-cnn", "fedaws"))
    with pytest.raises(SettingsError, match="'head' is trained, the server trains 'all'"):
        check_fit("handwriting", bundle, deployment=whole)
    with pytest.raises(SettingsError, match="by voice"):
        check_fit("voice", bundle, deployment=deployment())


def test_a_device_computes_it_without_torch(tmp_path: Path, bundle: Bundle) -> None:
    bundle.save(tmp_path / "head.uvb")
    script = f"""
import sys
sys.modules["torch"] = None
sys.modules["onnx"] = None
import numpy as np
import uvsdk_device.frozen_views
from uvsdk.bundle import Bundle
from uvsdk.bundle.frozen import FrozenPart
views = FrozenPart(Bundle.open({str(tmp_path / "head.uvb")!r}))(np.full((8, 8), 0.5, np.float32))
print(views.inference.shape, views.crops.shape)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "(1, 512) (8, 512)"
