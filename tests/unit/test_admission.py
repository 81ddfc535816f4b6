"""What a device says of itself when it joins: what the algorithm needs, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from tests.builders import open_store
from uvsdk import modality
from uvsdk.bundle import shipped
from uvsdk.errors import EdgeOnlyError
from uvsdk.federation.messages import TrainingConfig
from uvsdk.privacy.identifiers import (
    canonical_embedding,
    canonical_instance,
    hash_instance,
    hash_person,
    hash_user_id,
)
from uvsdk.templates.template import Template
from uvsdk_device.deployment import Deployment
from uvsdk_device.membership import Device, Membership, admission_of, send_template

PEPPER = bytes(range(16))
PAGES = [np.random.default_rng(seed).uniform(0, 16, (8, 8)) for seed in range(3)]
NOBODY: Any = SimpleNamespace()
MODELS: Any = SimpleNamespace(of_round=lambda version: shipped())


def member(*needs: str, edge_only: bool = False) -> Membership:
    deployment = Deployment(
        name="clinic",
        config=TrainingConfig("clinic", "handwriting", "digits-cnn", "fedalc"),
        server_key_id="k" * 32,
        server_public_key=X25519PrivateKey.generate().public_key(),
        server_signing_key=Ed25519PrivateKey.generate().public_key(),
        model_version=shipped().version,
        modality="handwriting",
        needs=needs,
        edge_only=edge_only,
    )
    device = Device(Ed25519PrivateKey.generate(), X25519PrivateKey.generate(), True, True)
    return Membership("ada", hash_user_id("ada", deployment="clinic", pepper=PEPPER), device, deployment, NOBODY)


@pytest.fixture(scope="module")
def features() -> tuple[Any, ...]:
    reader = modality.get("handwriting")
    return tuple(reader.prepare(page, shipped()).features for page in PAGES)


def hashed(parts: list[bytes]) -> list[bytes]:
    return sorted(hash_instance(part, deployment="clinic", pepper=PEPPER) for part in parts)


def test_nothing_is_said_that_is_not_needed(features: tuple[Any, ...]) -> None:
    made = admission_of(member(), features, MODELS, person_id="ada", pepper=PEPPER)
    assert (made.samples, made.mean.shape, made.instances.shape) == (3, (0,), (0, 32))
    assert (made.person, made.classes) == ("", ())


def test_the_mean_is_that_of_the_embeddings_and_not_normalised(features: tuple[Any, ...]) -> None:
    made = admission_of(member("mean"), features, MODELS, person_id="", pepper=PEPPER)
    reader, bundle = modality.get("handwriting"), shipped()
    rows = [bundle.embedding(reader.views(item, bundle.manifest.preprocessing)) for item in features]
    np.testing.assert_allclose(made.mean, np.mean(rows, axis=0), atol=1e-6)
    assert float(np.linalg.norm(made.mean)) < 1.0


def test_instances_are_sorted_and_a_copy_counts_once(features: tuple[Any, ...]) -> None:
    twice = (*features, features[0])
    made = admission_of(member("instances"), twice, MODELS, person_id="ada", pepper=PEPPER)
    assert [bytes(row) for row in made.instances] == hashed([canonical_instance(item) for item in features])
    assert (made.samples, made.person) == (4, "")


def test_the_embedded_form_hashes_the_rounded_embeddings(features: tuple[Any, ...]) -> None:
    made = admission_of(member("embedded-instances"), features, MODELS, person_id="", pepper=PEPPER)
    reader, bundle = modality.get("handwriting"), shipped()
    rows = [bundle.embedding(reader.views(item, bundle.manifest.preprocessing)) for item in features]
    assert [bytes(row) for row in made.instances] == hashed([canonical_embedding(row) for row in rows])
    assert made.mean.shape == (0,)


def test_a_person_is_linked_where_both_sides_want_it(features: tuple[Any, ...]) -> None:
    made = admission_of(member("person"), features, MODELS, person_id="Ada", pepper=PEPPER)
    assert made.person == hash_person("ada", deployment="clinic", pepper=PEPPER) != made.user
    assert admission_of(member("person"), features, MODELS, person_id="", pepper=PEPPER).person == ""


def test_a_template_that_may_not_leave_is_not_even_sealed(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store")
    template = Template(np.eye(32, dtype=np.float32)[0], shipped().version, "handwriting", 3)
    with pytest.raises(EdgeOnlyError, match="fedalc a template never leaves"):
        send_template(store, member(edge_only=True), replace(template))
