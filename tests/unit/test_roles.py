"""Who only evaluates: drawn once, from a share, and never so many that rounds starve."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from uvsdk.federation import roles, streams
from uvsdk.federation.messages import TrainingConfig
from uvsdk_server.keys import KeyFolder
from uvsdk_server.training import Training

CONFIG = TrainingConfig("clinic", "voice", "ge2e", "fedaws", seed=7)
USERS = [f"{number:064x}" for number in range(2000)]


def test_the_first_eight_train_and_of_the_others_the_share_evaluates() -> None:
    chosen = roles.split(USERS, seed=7, config=CONFIG)
    assert not chosen & set(USERS[: roles.LEAST_TRAINERS])
    # 1992 draws of 0.2: 398 are expected, with a standard deviation of 18
    assert 340 < len(chosen) < 460


def test_three_people_all_train() -> None:
    everybody = replace(CONFIG, evaluation_share=0.999)
    assert roles.split(USERS[:3], seed=7, config=everybody) == frozenset()
    assert len(roles.split(USERS[:20], seed=7, config=everybody)) == 12


def test_everybody_evaluates_where_nobody_trains() -> None:
    resting = replace(CONFIG, rounds=0, evaluation_share=0.0)
    assert roles.split(USERS[:3], seed=7, config=resting) == frozenset(USERS[:3])
    assert roles.split(USERS[:3], seed=7, config=replace(resting, evaluation="off")) == frozenset()


def test_a_round_that_needs_more_is_filled_first() -> None:
    demanding = replace(CONFIG, evaluation_share=0.999, min_clients=12)
    assert len(roles.split(USERS[:20], seed=7, config=demanding)) == 8


@pytest.mark.parametrize("changes", [{"evaluation_share": 0.0}, {"evaluation": "off"}])
def test_nobody_is_drawn_where_nothing_is_evaluated(changes: dict[str, object]) -> None:
    assert roles.split(USERS, seed=7, config=replace(CONFIG, **changes)) == frozenset()


def test_the_draw_is_keyed_and_groups_are_even() -> None:
    assert roles.split(USERS, seed=7, config=CONFIG) != roles.split(USERS, seed=8, config=CONFIG)
    groups = [roles.group(user, key=roles.key_of(7), groups=10) for user in USERS]
    assert set(groups) == set(range(10))
    assert all(150 < groups.count(number) < 250 for number in range(10))  # 200 are expected, give or take 13


def test_a_server_draws_under_its_secret_and_not_under_a_seed_that_devices_know(tmp_path: Path) -> None:
    config = replace(CONFIG, seed=7)
    drawn = []
    for name in ("one", "other", "one"):  # the last opens the first server's folder again
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        path = folder / "at-rest.key"
        if not path.exists():
            path.write_bytes(name.encode().ljust(32, b"."))
        training = Training(config, 7, role_key=KeyFolder(folder).role_key(), dimension=2, parameters=1, start_norm=1.0)
        drawn.append([(training.evaluates(user, 100), training.group(user)) for user in USERS])
        assert training.round_seed(1) == str(streams.round_seed(7, 1))  # all else is drawn under the seed
    public = [
        (
            roles.evaluates(user, key=roles.key_of(7), trainers=100, config=config),
            roles.group(user, key=roles.key_of(7), groups=10),
        )
        for user in USERS
    ]
    assert drawn[0] == drawn[2]
    assert drawn[0] != drawn[1]
    assert public not in drawn
