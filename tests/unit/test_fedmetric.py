"""FedMetric: the loss by hand and by differences, what is published and when, what a server relays."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.builders import unit
from uvsdk.errors import SettingsError, UpdateRejectedError
from uvsdk.federation.algorithms.fedmetric import client, proxies
from uvsdk.federation.algorithms.fedmetric.client import CLIENT, Local
from uvsdk.federation.algorithms.fedmetric.payload import Payload, Settings, Task
from uvsdk.federation.algorithms.fedmetric.proxies import ProxyStore
from uvsdk.federation.algorithms.fedmetric.server import SERVER
from uvsdk.federation.messages import Admission
from uvsdk.federation.strategy import Contribution, Embed, Memory
from uvsdk.records.codec import pack, unpack

D = 6
PAPER = Settings.paper()


def people(n: int, seed: int = 0, dimension: int = D) -> Tensor:
    rng = np.random.default_rng(seed)
    rows = unit(rng.standard_normal(dimension) + 0.3 * rng.standard_normal((n, dimension)))
    return torch.tensor(rows.astype(np.float32))


def embedder(rows: Tensor) -> Embed:
    def embed(indices: Sequence[int] | None = None, /) -> Tensor:
        return rows if indices is None else rows[torch.tensor(list(indices))]

    return embed


def secret(seed: int = 0) -> Callable[[int], bytes]:
    return np.random.default_rng(seed).bytes


def task_of(others: int, *, publish: bool = True, seed: int = 5, margin: float = 1.5) -> Task:
    centres = 1.3 * unit(np.random.default_rng(seed).standard_normal((others, D)))
    return Task(centres.astype(np.float32), np.full(others, margin, np.float32), publish)


def begun(
    rows: Tensor, settings: Settings, *, task: Task | None = None, memory: Memory | None = None, seed: int = 0
) -> Local:
    rng = np.random.default_rng(0)
    return CLIENT.begin(task or task_of(3), memory or {}, embedder(rows), settings, rng, secret(seed))


def finished(local: Local, rows: Tensor, settings: Settings, seed: int = 0) -> tuple[Payload, Memory]:
    return CLIENT.finish(local, embedder(rows), settings, np.random.default_rng(0), secret(seed))


def loss(embeddings: Tensor, local: Local, settings: Settings) -> Tensor:
    return CLIENT.loss(embeddings, torch.zeros(len(embeddings), dtype=torch.int64), local, settings)


def plane(centre: list[float], others: list[list[float]], margins: list[float]) -> Local:
    """Local state in two dimensions, float64."""
    like = begun(people(4, dimension=2), PAPER, task=Task(np.zeros((0, 2), np.float32), np.zeros(0, np.float32), False))
    return replace(
        like,
        centre=torch.tensor(centre, dtype=torch.float64),
        others=torch.tensor(others, dtype=torch.float64).reshape(-1, 2),
        margins=torch.tensor(margins, dtype=torch.float64),
    )


EAST_NORTH = torch.tensor([[1.0, 0.0], [0.0, 1.0]], dtype=torch.float64)


def test_the_paper_loss_by_hand() -> None:
    # C = (0.6, 0): d = 0.4 and sqrt(0.36 + 1) = 1.16619; mean 0.78310.
    # A = (1, 1) with M = 1.2: both at distance 1, slack 0.2, squared 0.04; A = (-1, 0) with M = 1.5: distances 2 and
    # 1.41421, slack 0 and 0.08579, squared 0.00736. Sum over j, mean over the batch: (0.04 + 0.04736) / 2 = 0.04368.
    local = plane([0.6, 0.0], [[1, 1], [-1, 0]], [1.2, 1.5])
    assert float(loss(EAST_NORTH, local, PAPER)) == pytest.approx(0.78310 + 0.3 * 0.04368, abs=1e-5)
    # S3 Alg 1 prints the hinge without the square: (0.2 + 0.28579) / 2 = 0.24289.
    hinge = replace(PAPER, negative_loss="hinge")
    assert float(loss(EAST_NORTH, local, hinge)) == pytest.approx(0.78310 + 0.3 * 0.24289, abs=1e-5)
    mean = replace(PAPER, negative_reduction="mean")
    assert float(loss(EAST_NORTH, local, mean)) == pytest.approx(0.78310 + 0.15 * 0.04368, abs=1e-5)


def test_the_mended_loss_by_hand() -> None:
    # Centre (1, 0), pull beyond 0.4: distances 0 and 1.41421, (1.01421)^2 / 2 = 0.51431. A = (1, 1), M = 1.2: 0.04 for
    # each embedding, and for the centre, which lies on the first.
    local = plane([1.0, 0.0], [[1, 1]], [1.2])
    settings = Settings(pull_radius=0.4, negative_weight=0.3, centre_push=2.0)
    assert float(loss(EAST_NORTH, local, settings)) == pytest.approx(0.51431 + 0.3 * 0.04 + 2 * 0.04, abs=1e-5)


def test_without_others_there_is_only_the_pull() -> None:
    alone = plane([0.6, 0.0], [], [])
    assert float(loss(EAST_NORTH, alone, PAPER)) == pytest.approx(0.78310, abs=1e-5)
    filled = plane([0.6, 0.0], [[0, 0], [0, 0]], [0.0, 0.0])  # rows that only fill up
    for reduction in ("sum", "mean"):
        settings = replace(PAPER, negative_reduction=reduction)
        assert float(loss(EAST_NORTH, filled, settings)) == pytest.approx(0.78310, abs=1e-5)


def test_a_batch_centre_is_the_mean_of_the_batch_and_a_constant() -> None:
    # The mean (0.5, 0.5) is 0.70711 from both.
    local = plane([9.0, 9.0], [], [])
    batch = EAST_NORTH.clone().requires_grad_()
    value = loss(batch, local, replace(PAPER, centre="batch"))
    assert float(value.detach()) == pytest.approx(math.sqrt(0.5))
    value.backward()  # type: ignore[no-untyped-call]
    # (g - C) / d / 2: the mean's own dependence on g would make the two rows cancel differently.
    np.testing.assert_allclose(batch.grad, np.array([[0.5, -0.5], [-0.5, 0.5]]) / math.sqrt(0.5) / 2, atol=1e-6)


VARIANTS: list[dict[str, Any]] = [
    {},
    {"negative_loss": "hinge", "negative_reduction": "sum", "centre_push": 0.2},
    {"positive_loss": "linear", "pull_radius": 0.2, "centre": "fixed"},
    {"positive_loss": "linear", "pull_radius": 0.0, "centre": "fixed", "negative_reduction": "sum"},
]


@pytest.mark.parametrize("values", VARIANTS)
def test_the_gradient_is_the_finite_difference(values: dict[str, Any]) -> None:
    settings = Settings(**values)
    single = begun(people(5), settings)
    local = replace(
        single,
        centre=single.centre.double(),
        others=single.others.double(),
        margins=torch.tensor([1.6, 1.7, 1.8], dtype=torch.float64),
    )
    batch = torch.tensor(unit(np.random.default_rng(3).standard_normal((4, D)))).requires_grad_()
    trained = list(CLIENT.parameters(local, settings))
    assert len(trained) == (settings.centre == "trained")
    for tensor in trained:
        tensor.requires_grad_()
    loss(batch, local, settings).backward()  # type: ignore[no-untyped-call]
    for tensor in (batch, *trained):
        assert tensor.grad is not None
        numeric = torch.empty_like(tensor)
        with torch.no_grad():
            flat, out = tensor.view(-1), numeric.view(-1)
            for place in range(flat.numel()):
                kept = float(flat[place])
                around = []
                for shift in (1e-6, -1e-6):
                    flat[place] = kept + shift
                    around.append(float(loss(batch, local, settings)))
                flat[place] = kept
                out[place] = (around[0] - around[1]) / 2e-6
        torch.testing.assert_close(tensor.grad, numeric, atol=1e-6, rtol=1e-6)


def test_the_loss_is_the_same_stacked() -> None:
    settings = Settings()
    locals_ = [begun(people(5, seed), settings, task=task_of(3, seed=seed)) for seed in (1, 2)]
    batches = torch.stack([people(4, seed) for seed in (3, 4)])
    names = ("centre", "others", "margins")
    fields = {name: torch.stack([getattr(local, name) for local in locals_]) for name in names}
    places = torch.zeros(4, dtype=torch.int64)
    stacked = torch.func.vmap(lambda rows, own: CLIENT.loss(rows, places, replace(locals_[0], **own), settings))(
        batches, fields
    )
    alone = torch.stack([loss(rows, local, settings) for rows, local in zip(batches, locals_, strict=True)])
    torch.testing.assert_close(stacked, alone)


def test_margins_leave_room_on_the_sphere() -> None:
    # |A| = 1.5: M = 2.5 would reach the farthest point of the sphere, (-1, 0). A cap of cosine 0 is left from
    # sqrt(1 + 2.25) = 1.80278, one of cosine 0.5 from sqrt(1 + 2.25 - 1.5) = 1.32288.
    centres, margins = np.array([[1.5, 0.0]], np.float32), np.array([9.0], np.float32)
    for cosine, expected in ((0.0, 1.80278), (0.5, 1.32288), (-1.0, 2.5)):
        assert client.clamp(centres, margins, Settings(cap_cosine=cosine)) == pytest.approx(expected, abs=1e-5)
    assert client.clamp(centres, margins, PAPER) == pytest.approx(1.2)
    assert client.clamp(centres, np.array([0.7], np.float32), Settings()) == pytest.approx(0.7)


def test_a_trained_centre_starts_apart_from_what_all_share_and_is_kept() -> None:
    rows, settings = people(8), Settings()
    task = task_of(3)
    local = begun(rows, settings, task=task)
    apart = rows.double().mean(dim=0).numpy() - task.centres.astype(np.float64).mean(axis=0)
    np.testing.assert_allclose(local.centre, unit(apart), atol=1e-6)
    with torch.no_grad():
        local.centre.mul_(3.0)
    CLIENT.constrain(local, settings)
    assert float(local.centre.norm()) == pytest.approx(1.0)
    _, memory = finished(local, rows, settings)
    np.testing.assert_array_equal(memory["centre"], local.centre)
    again = begun(people(8, seed=9), settings, memory=memory)
    np.testing.assert_array_equal(again.centre, memory["centre"])


def test_before_there_are_others_the_centre_is_the_mean_and_not_kept() -> None:
    rows, settings = people(8), Settings()
    local = begun(rows, settings, task=task_of(0))
    np.testing.assert_allclose(local.centre, unit(rows.double().mean(dim=0).numpy()), atol=1e-6)
    _, memory = finished(local, rows, settings)
    assert "centre" not in memory


def test_a_random_start_is_a_secret_direction_of_the_device() -> None:
    rows, settings = people(8), Settings(initialisation="random")
    starts = [
        begun(rows, settings, task=task_of(others, publish=False), seed=seed) for others, seed in ((0, 1), (0, 2))
    ]
    for local in starts:
        assert float(local.centre.norm()) == pytest.approx(1.0)
        assert "centre" in finished(local, rows, settings)[1]
    assert not torch.allclose(starts[0].centre, starts[1].centre)


def test_a_fixed_centre_is_the_mean_of_all_or_of_the_first_samples() -> None:
    rows = people(8)
    quiet = task_of(2, publish=False)
    for samples, used in ((0, 8), (3, 3), (8, 8), (50, 8)):
        local = begun(rows, replace(PAPER, centre_samples=samples), task=quiet)
        torch.testing.assert_close(local.centre, rows[:used].mean(dim=0))


def test_what_is_published_holds_every_embedding() -> None:
    rows = people(12)
    for sharing, measured in (("proxy", "global"), ("proxy", "local"), ("true", "global")):
        settings = Settings(sharing=sharing, measured=measured)
        payload, memory = finished(begun(rows, settings), rows, settings)
        assert payload.centre.dtype == np.float32
        distances = np.linalg.norm(rows.double().numpy() - payload.centre.astype(np.float64), axis=1)
        assert (distances <= payload.margin).all()
        ball = proxies.true_ball(rows.numpy())
        moved = np.linalg.norm(payload.centre - ball.centre)
        if sharing == "true":
            assert moved == pytest.approx(0.0, abs=1e-6)
            assert "offset" not in memory
        else:
            assert moved == pytest.approx(3 * ball.radius, rel=1e-5)
            assert np.linalg.norm(memory["offset"]) == pytest.approx(moved, rel=1e-5)


def test_a_local_ball_is_of_the_trained_trunk_and_a_global_one_of_the_rounds() -> None:
    before, after = people(6, 1), people(6, 2)
    for measured, rows in (("global", before), ("local", after)):
        settings = Settings(sharing="true", measured=measured)
        payload, _ = finished(begun(before, settings), after, settings)
        np.testing.assert_allclose(payload.centre, rows.mean(dim=0), atol=1e-6)


def test_the_offset_is_the_same_in_every_round_and_never_sent() -> None:
    settings, memory, sent = Settings(), {}, []
    for round_id in range(4):
        rows = people(6, seed=1)
        local = begun(rows, settings, memory=memory, seed=round_id)  # other secret bytes each time
        payload, memory = finished(local, rows, settings, seed=round_id)
        sent.append(payload.centre)
        assert memory["rotations"].tolist() == [0]
    for centre in sent[1:]:
        np.testing.assert_array_equal(centre, sent[0])
    assert set(Payload.__dataclass_fields__) == {"centre", "margin"}


def test_an_outgrown_offset_is_replaced_within_the_budget_and_then_nothing_is_published() -> None:
    settings, memory, published = Settings(offset_min=0.0), {}, []
    for scale in (0.003, 0.01, 0.05, 0.4):  # each ball more than doubles the one before; s = 3 allows two replacements
        rng = np.random.default_rng(4)
        rows = torch.tensor(unit(np.eye(1, D) + scale * rng.standard_normal((6, D))).astype(np.float32))
        payload, memory = finished(begun(rows, settings, memory=memory), rows, settings)
        published.append(len(payload.centre) > 0)
    assert published == [True, True, True, False]
    assert memory["rotations"].tolist() == [2]


def test_nothing_is_published_when_it_is_not_due() -> None:
    rows = people(6)
    for measured in ("global", "local"):
        settings = Settings(measured=measured)
        payload, memory = finished(begun(rows, settings, task=task_of(2, publish=False)), rows, settings)
        assert payload.centre.shape == (0,)
        assert payload.margin == 0.0
        assert "offset" not in memory


def test_a_percentile_leaves_the_outlier_out() -> None:
    rows = torch.cat((people(30), -people(1, seed=0)))
    whole, most = (
        finished(begun(rows, settings), rows, settings)[0].margin
        for settings in (Settings(sharing="true"), Settings(sharing="true", percentile=90.0))
    )
    assert most < 0.7 * whole


def test_a_task_that_is_none_is_refused() -> None:
    good = task_of(3)
    for bad in (
        replace(good, margins=good.margins[:2]),
        replace(good, centres=good.centres[:, :3]),
        replace(good, centres=np.full_like(good.centres, np.nan)),
        replace(good, margins=np.full_like(good.margins, np.inf)),
        replace(good, centres=good.centres[0]),
    ):
        with pytest.raises(UpdateRejectedError, match="the server sent"):
            begun(people(5), Settings(), task=bad)


def admitted(users: str, settings: Settings, **persons: str) -> ProxyStore:
    state = SERVER.empty(D, settings)
    for user in users:
        admission = Admission(user, "m", 5, np.empty(0, np.float32), person=persons.get(user, ""))
        state = SERVER.admit(state, admission, settings, np.random.default_rng(0))
    return SERVER.start(state, settings, np.random.default_rng(0))


def proxy(seed: int, margin: float = 1.5) -> Payload:
    return Payload((1.2 * unit(np.random.default_rng(seed).standard_normal(D))).astype(np.float32), margin)


def stepped(state: ProxyStore, settings: Settings, **sent: Payload) -> ProxyStore:
    for user, payload in sent.items():
        SERVER.check(payload, state, user, settings)
    items = tuple(Contribution(user, 5, payload) for user, payload in sorted(sent.items()))
    return SERVER.step(state, items, settings, np.random.default_rng(0))


def test_the_server_relays_what_came_without_names_and_without_the_own() -> None:
    settings = Settings()
    state = stepped(admitted("cab", settings), settings, a=proxy(1), b=proxy(2))
    assert SERVER.users(state) == ("a", "b", "c")
    task = SERVER.task(state, "a", None, settings, np.random.default_rng(0))
    assert set(Task.__dataclass_fields__) == {"centres", "margins", "publish"}
    assert sorted(task.margins.tolist()) == [0.0, 1.5]  # b's, and a row that fills up
    np.testing.assert_array_equal(task.centres[task.margins > 0], proxy(2).centre[None])
    assert sorted(SERVER.task(state, "c", None, settings, np.random.default_rng(0)).margins.tolist()) == [1.5, 1.5]


def test_proxies_are_asked_for_when_they_are_due() -> None:
    settings = Settings(publish_every=3, age_max=5)
    state = admitted("ab", settings)
    due = []
    for round_id in range(7):
        asked = SERVER.task(state, "a", None, settings, np.random.default_rng(0)).publish
        due.append(asked)
        state = stepped(state, settings, a=proxy(round_id) if asked else Payload(np.empty(0, np.float32), 0.0))
    assert due == [True, False, False, True, False, False, True]
    silent = Settings(sharing="none")
    assert not SERVER.task(admitted("ab", silent), "a", None, silent, np.random.default_rng(0)).publish


def test_of_two_devices_of_one_user_the_one_with_more_samples_counts() -> None:
    settings = Settings()
    state = admitted("ab", settings)
    items = (Contribution("a", 9, proxy(1)), Contribution("a", 5, proxy(2)))
    state = SERVER.step(state, items, settings, np.random.default_rng(0))
    np.testing.assert_array_equal(state.centres[0], proxy(1).centre)


def test_state_task_and_payload_survive_the_codec() -> None:
    settings = Settings()
    state = stepped(admitted("abc", settings, a="x", b="x"), settings, a=proxy(1), c=proxy(2))
    assert pack(unpack(ProxyStore, pack(state))) == pack(state)
    for message in (SERVER.task(state, "a", None, settings, np.random.default_rng(0)), proxy(1)):
        assert pack(unpack(type(message), pack(message))) == pack(message)


def test_true_centres_and_short_offsets_are_for_those_an_operator_names() -> None:
    assert "template" in SERVER.restricted(Settings(sharing="true"))
    assert "own ball" in SERVER.restricted(Settings(offset_factor=1.0))
    for settings in (Settings(), PAPER, Settings(sharing="none")):
        assert SERVER.restricted(settings) == ""
    assert not SERVER.verifies_on_server
    assert SERVER.needs(Settings()) == {"person"}


def test_the_report_gives_both_risks() -> None:
    settings = Settings()
    state = stepped(admitted("abc", settings), settings, a=proxy(1))
    report = SERVER.report(state, settings)
    assert (report["proxies"], report["proxies_absent"], report["proxies_expired"]) == (1, 2, 0)
    assert report["log10_risk_volume"] == pytest.approx(-D * math.log10(4))
    assert report["log10_risk_sphere"] == pytest.approx(proxies.log10_risk_sphere(D, 3.0))
    assert "log10_risk_volume" not in SERVER.report(state, Settings(sharing="none"))


def test_an_admission_with_several_classes_or_no_sample_is_refused() -> None:
    settings = Settings()
    for wrong in ({"classes": ("a", "b")}, {"samples": 0}):
        admission = replace(Admission("u", "m", 5, np.empty(0, np.float32)), **wrong)
        with pytest.raises(UpdateRejectedError):
            SERVER.admit(SERVER.empty(D, settings), admission, settings, np.random.default_rng(0))


def test_a_proxy_where_none_is_shared_is_refused() -> None:
    with pytest.raises(UpdateRejectedError, match="none is shared"):
        SERVER.check(proxy(1), admitted("a", Settings()), "a", Settings(sharing="none"))


@pytest.mark.parametrize(
    "wrong",
    [
        {"sharing": "all"},
        {"negative_loss": "cubed"},
        {"negative_reduction": "max"},
        {"positive_loss": "cubed"},
        {"centre": "moving"},
        {"initialisation": "zeros"},
        {"measured": "never"},
        {"negative_weight": -0.1},
        {"centre_rate": float("inf")},
        {"offset_factor": 0.0},
        {"offset_min": -1.0},
        {"pull_radius": 2.1},
        {"radius_min": float("nan")},
        {"cap_cosine": 1.0},
        {"radius_samples": 2},
        {"publish_every": 0},
        {"publish_every": 30},
        {"percentile": 0.0},
        {"proxies": -1},
        {"age_max": -1},
    ],
)
def test_settings_out_of_range(wrong: dict[str, Any]) -> None:
    with pytest.raises(SettingsError):
        Settings(**wrong)
