"""The server's side of FedMetric: keep the proxies that came, relay them to others, drop those that are old."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from uvsdk.arrays import Float64
from uvsdk.errors import UpdateRejectedError
from uvsdk.federation.algorithms.fedmetric import proxies
from uvsdk.federation.algorithms.fedmetric.payload import Payload, Settings, Task
from uvsdk.federation.algorithms.fedmetric.proxies import ProxyStore
from uvsdk.federation.guards import check_samples
from uvsdk.federation.messages import Admission
from uvsdk.federation.strategy import PERSON, Contribution, ServerAlgorithm
from uvsdk.records.codec import Scalar


def _needs(settings: Settings) -> frozenset[str]:
    return frozenset({PERSON})


def _empty(dimension: int, settings: Settings) -> ProxyStore:
    return proxies.empty(dimension)


def _admit(state: ProxyStore, admission: Admission, settings: Settings, rng: np.random.Generator) -> ProxyStore:
    check_samples(admission.samples)
    if admission.classes:
        raise UpdateRejectedError(
            f"FedMetric keeps one ball per device, this one holds {len(admission.classes)} named classes; enrol each "
            "person as a user of its own"
        )
    return proxies.admit(state, admission.user, admission.person)


def _start(state: ProxyStore, settings: Settings, rng: np.random.Generator) -> ProxyStore:
    return state


def _users(state: ProxyStore) -> tuple[str, ...]:
    return state.users


def _task(state: ProxyStore, user: str, request: None, settings: Settings, rng: np.random.Generator) -> Task:
    centres, margins = proxies.relay(state, user, most=settings.proxies, rng=rng)
    age = int(state.age[state.row(user)])
    due = age == proxies.UNPUBLISHED or age + 1 >= settings.publish_every
    return Task(centres, margins, due and settings.sharing != "none")


def _check(payload: Payload, state: ProxyStore, user: str, settings: Settings) -> None:
    state.row(user)
    if payload.centre.shape == (0,) and payload.margin == 0.0:
        return
    if settings.sharing == "none":
        raise UpdateRejectedError("a proxy arrived in a training where none is shared; send an empty payload")
    proxies.check_proxy(payload.centre, payload.margin, state.dimension, longest=settings.longest_margin())


def _step(
    state: ProxyStore, contributions: tuple[Contribution[Payload], ...], settings: Settings, rng: np.random.Generator
) -> ProxyStore:
    """One round. Of several devices of one user the proxy with more samples behind it counts, the later at a tie."""
    published = {
        item.user: (item.payload.centre, item.payload.margin)
        for item in sorted(contributions, key=lambda item: item.samples)
        if len(item.payload.centre)
    }
    return proxies.refresh(state, published, age_max=settings.age_max)


def _class_matrix(state: ProxyStore) -> tuple[tuple[str, ...], Float64]:
    """The server has no class vectors."""
    return (), np.empty((0, state.dimension))


def _restricted(settings: Settings) -> str:
    if settings.sharing == "true":
        return "sharing = true sends every person's true centre, a usable template, to the server and to all others"
    if settings.sharing == "proxy" and settings.offset_factor <= 1.0:
        return f"offset_factor = {settings.offset_factor:g} leaves the published centre within the person's own ball"
    return ""


def _report(state: ProxyStore, settings: Settings) -> Mapping[str, Scalar]:
    """How many proxies there are and what an attacker's best guess is worth (SPEC 4.4)."""
    live = int(state.live.sum())
    facts: dict[str, Scalar] = {
        "proxies": live,
        "proxies_expired": state.expired,
        "proxies_absent": len(state.users) - live,
    }
    if settings.sharing == "proxy":
        facts["log10_risk_volume"] = proxies.log10_risk_volume(state.dimension, settings.offset_factor)
        facts["log10_risk_sphere"] = proxies.log10_risk_sphere(state.dimension, settings.offset_factor)
    return facts


SERVER = ServerAlgorithm(
    state=ProxyStore,
    settings=Settings,
    payload=Payload,
    needs=_needs,
    empty=_empty,
    admit=_admit,
    remove=proxies.remove,
    start=_start,
    users=_users,
    task=_task,
    check=_check,
    step=_step,
    class_matrix=_class_matrix,
    restricted=_restricted,
    report=_report,
    verifies_on_server=False,
    impostors="cohort",
)
