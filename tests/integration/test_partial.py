"""Training the head alone, over the wire: small updates, a frozen part whose outputs stay on the device, ``kill -9``.

Four real device processes and a real server, of which one device and the server are killed in the second round
(``method_run.py``); the model comes out as a simulation's.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

from tests.integration import roles
from tests.integration.harness import CONFIG, RunningServer
from tests.integration.method_run import (
    PERSONS,
    Case,
    Crew,
    Run,
    check_model,
    check_operators_view,
    check_rounds,
    check_verification,
    check_what_was_sent,
    model_of,
    training,
)
from uvsdk import enroll
from uvsdk.bundle import Bundle, frozen, shipped
from uvsdk.errors import SettingsError
from uvsdk.federation.messages import TrainingConfig
from uvsdk_device.deployment import approved_deployment
from uvsdk_device.frozen_views import frozen_views
from uvsdk_server import Settings
from uvsdk_server.deployment import Deployment
from uvsdk_server.freshness import Freshness
from uvsdk_server.monitoring import Metrics, logger
from uvsdk_server.observer import Unobserved

HEAD = 512 * 32 + 32
"""Parameters of the head, of 21,312 in all."""


@pytest.mark.parametrize(
    "case",
    [
        Case("fedaws", {"train": "head"}),
        # Sixteen dimensions: an update is 2 kB beside its envelope and what the method sends.
        Case("fedaws", {"train": "head", "backbone": "digits-cnn+16", "learning_rate": 0.02}),
    ],
    ids=["the last layer", "a head of 16"],
)
def test_a_head_over_the_wire(case: Case, tmp_path: Path, crew: Crew) -> None:
    with training(case, tmp_path, crew) as run:
        check_rounds(run)
        check_model(run)
        check_what_was_sent(run)
        check_operators_view(run)
        check_sizes(run)
        check_what_is_kept(run)
        check_refusals(run)
        if "+" not in case.config.backbone:
            check_verification(run)


def check_sizes(run: Run) -> None:
    """Theta, and with it an update, has the size of the head; what never changed is not sent."""
    size = run.model.manifest.size
    assert size == (16 * 32 if "+" in run.config.backbone else HEAD)
    for person in PERSONS:
        updates = [path.stat().st_size for path in (run.folder / f"sent {person}").glob("*update")]
        assert updates
        assert all(4 * size < update < 4 * size + 4096 for update in updates), updates
    answer = run.server.ask("GET", "/v1/models/candidate/theta")
    assert len(answer.content) == 4 * size


def check_what_is_kept(run: Run) -> None:
    """Written once, in each device's first round, and still good for a model of another theta."""
    (closed,) = run.server.rows("SELECT closed FROM rounds WHERE round_id = 1")
    trained = run.trained()
    part = frozen.FrozenPart(trained)
    assert part.digest == frozen.digest(run.model)
    for person in PERSONS:
        store = roles.store_of(run.folder, person)
        (path,) = (store.folder / "users").glob("*/frozen-views.*")
        assert path.stat().st_mtime < closed[0], "it was written again in a later round"
        federation = roles.federation_of(run.server.url, person)
        with federation._connection() as connection:
            deployment = approved_deployment(connection, store, approve=None, now=time.time())
        features = store.features(person)
        kept = frozen_views(store, person, deployment=deployment, features=features, bundle=trained)
        assert path.stat().st_mtime < closed[0]
        body = path.read_bytes()
        for item, sample in zip(kept, features, strict=True):
            np.testing.assert_allclose(item.inference, part(sample).inference, atol=1e-6)
            assert item.inference[0, :8].tobytes() not in body


def check_refusals(run: Run) -> None:
    """A device that brings a model of which all is trained is told so, and nothing is sent."""
    person = PERSONS[0]
    federation = roles.federation_of(run.server.url, person)
    with pytest.raises(SettingsError, match="'all' is trained, the server trains 'head'"):
        federation.participate(person, roles.store_of(run.folder, person), model=shipped())


def test_a_device_enrolled_with_another_model_takes_the_servers(tmp_path: Path) -> None:
    """Who enrolled with a model of which all is trained joins by downloading the head's; the template follows."""
    config = replace(CONFIG, algorithm="fixed", train="head", rounds=1, min_clients=1, local_steps=2)
    model, known = model_of("digits-cnn", "head"), shipped().calibration
    assert known is not None
    # The same weights, so the same scores: by a model without thresholds a device that has one would verify nobody.
    model = model.with_calibration(replace(known, model_version=model.version))
    server = RunningServer(tmp_path / "server", config=config, model=model, settings={"start_after_users": "1"})
    server.start()
    try:
        person = PERSONS[0]
        store = roles.store_of(tmp_path, person)
        rng = np.random.default_rng(0)
        sign = rng.uniform(4, 16, (6, 6))
        pages = [np.pad(sign + rng.uniform(0, 0.5, (6, 6)), 1) for _ in range(4)]
        enroll(person, pages, model=shipped(), store=store)
        federation = roles.federation_of(server.url, person, token=server.token("enrol", uses=1))
        (report,) = federation.participate(person, store)
        assert (report.state, report.samples) == ("uploaded", len(store.features(person)))
        assert store.template(person).model_version == server.released()["model_version"]
        federation.withdraw(person, store)  # what was kept for that server goes with the keys
        assert list((store.folder / "users").glob("*/frozen-views.*")) == []
    finally:
        server.stop()


def test_a_server_serves_the_model_that_its_configuration_is_for(tmp_path: Path) -> None:
    head, model = replace(CONFIG, train="head"), model_of("digits-cnn", "head")
    with pytest.raises(SettingsError, match=r"'all' is trained, the configuration says train = 'head'.*--train head"):
        start(tmp_path / "one", head, shipped())
    with pytest.raises(SettingsError, match="'head' is trained, the configuration says train = 'all'"):
        start(tmp_path / "two", CONFIG, model)
    start(tmp_path / "three", head, model)
    with pytest.raises(SettingsError, match="train cannot change"):
        start(tmp_path / "three", CONFIG, model)


def start(folder: Path, config: TrainingConfig, model: Bundle) -> None:
    """Start and stop a server there."""
    server = RunningServer(folder, config=config, model=model)
    server.prepare()
    settings = Settings(data=server.data, model=server.model_file, training=server.training_file)

    async def run() -> None:
        freshness = Freshness(settings.signature_window_s)
        found = await Deployment.open(settings, Unobserved(), Metrics(), logger("error"), freshness=freshness)
        await found.close()

    asyncio.run(run())
