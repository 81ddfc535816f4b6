"""Enrolment, a round of training and verification with the model it made, with nothing but the light extras."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import numpy as np

from tests.integration.harness import CONFIG, serving
from tests.integration.numpy_devices import federation_of, make_store, pages
from uvsdk import enroll, verify
from uvsdk.bundle import shipped
from uvsdk.scoring import Threshold
from uvsdk_device import RoundReport, Runtime

PEOPLE = 3


def test_enrolled_trained_and_verified(tmp_path: Path) -> None:
    stores = [make_store(tmp_path, person) for person in range(PEOPLE)]
    config = replace(CONFIG, rounds=1, deadline_s=30.0)
    with serving(tmp_path / "server", config=config, settings={"start_after_users": str(PEOPLE)}) as server:
        token = server.token("enrol", uses=PEOPLE)
        for person, store in enumerate(stores):
            enrolled = enroll(
                f"person {person}",
                pages(person),
                model=shipped(),
                store=store,
                federation=federation_of(server, token),
            )
            assert enrolled.participation is not None
            assert enrolled.participation.state in ("joined", "trained"), enrolled.participation.detail
            assert verify(pages(person)[0], store.template(f"person {person}"), model=shipped()).accepted
        reports: dict[int, tuple[RoundReport, ...]] = {}

        def take_part(person: int) -> None:
            reports[person] = federation_of(server).participate(f"person {person}", stores[person])

        threads = [threading.Thread(target=take_part, args=(person,)) for person in range(PEOPLE)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert server.rows("select state from rounds") == [("committed",)]
        assert sorted(reports) == list(range(PEOPLE))
        server.promote(scores=np.linspace(-0.5, 0.9, 20_000, dtype=np.float32))
        newest = [federation_of(server).newest_model(f"person {n}", store) for n, store in enumerate(stores)]
    by_hand = Threshold(0.95, 0.01, 0)
    for person, (store, model) in enumerate(zip(stores, newest, strict=True)):
        assert model.version != shipped().version
        assert store.template(f"person {person}").model_version == model.version
        runtime = Runtime(store)
        for probe in range(PEOPLE):
            decision = runtime.verify(f"person {person}", pages(probe)[0], threshold=by_hand)
            assert decision.accepted == (probe == person)
