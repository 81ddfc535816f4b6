"""A method that nobody here knows, added as a folder and nothing else, keeps the whole contract."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

ROOT = Path(__file__).resolve().parents[2]
NAME = "halfway"

PAYLOAD = '''
    """What halfway sends and receives: each device's vector meets the mean of the others half-way, from afar."""

    from dataclasses import dataclass

    from uvsdk.arrays import Float32
    from uvsdk.errors import SettingsError
    from uvsdk.federation.strategy import Disclosure


    @dataclass(frozen=True, slots=True)
    class Settings:
        """``share`` of the way towards the opposite of the others' mean, each round."""

        share: float = 0.5

        def __post_init__(self) -> None:
            if not 0 <= self.share < 1:
                raise SettingsError(f"share is in [0, 1), got {self.share}")


    @dataclass(frozen=True, slots=True)
    class Task:
        goal: Float32


    @dataclass(frozen=True, slots=True)
    class Payload:
        direction: Float32


    DISCLOSURE = Disclosure(
        sends=("the change of the trunk", "the direction of this person's embeddings"),
        receives=("the trunk", "the goal: where the direction should go"),
        once=("the mean of the enrolment embeddings",),
        server_learns="a direction for every person",
        others_learn="the trunk",
    )
'''

SERVER = '''
    """The server's half."""

    from dataclasses import dataclass, replace

    import numpy as np

    from uvsdk.arrays import Float64
    from uvsdk.errors import UpdateRejectedError
    from uvsdk.federation.algorithms.halfway.payload import Payload, Settings, Task
    from uvsdk.federation.guards import check_samples, check_unit_vector, check_vector
    from uvsdk.federation.strategy import MEAN, ServerAlgorithm


    @dataclass(frozen=True, slots=True)
    class Goals:
        users: tuple[str, ...]
        goals: Float64


    def _unit(rows):
        return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


    def _admit(state, admission, settings, rng):
        check_samples(admission.samples)
        check_vector(admission.mean, state.goals.shape[1])
        if not 0 < float(np.linalg.norm(admission.mean)) <= 1.001 or admission.classes:
            raise UpdateRejectedError("a mean of unit embeddings, and no classes, are expected")
        if admission.user in state.users:
            return state
        place = sum(user < admission.user for user in state.users)
        users = (*state.users[:place], admission.user, *state.users[place:])
        return Goals(users, np.insert(state.goals, place, _unit(admission.mean.astype(np.float64)), axis=0))


    def _remove(state, user):
        if user not in state.users:
            return state
        place = state.users.index(user)
        users = state.users[:place] + state.users[place + 1 :]
        return Goals(users, np.delete(state.goals, place, axis=0))


    def _row(state, user):
        if user not in state.users:
            raise UpdateRejectedError("that user is not among those admitted")
        return state.goals[state.users.index(user)]


    def _task(state, user, request, settings, rng):
        return Task(_row(state, user).astype(np.float32))


    def _check(payload, state, user, settings):
        check_unit_vector(payload.direction, len(_row(state, user)))


    def _step(state, contributions, settings, rng):
        goals = state.goals.copy()
        for item in contributions:
            if item.user in state.users:
                goals[state.users.index(item.user)] = item.payload.direction
        if len(goals) > 1:
            others = (goals.sum(axis=0) - goals) / (len(goals) - 1)
            goals = (1 - settings.share) * goals - settings.share * others + 1e-9
        return replace(state, goals=_unit(goals))


    SERVER = ServerAlgorithm(
        state=Goals,
        settings=Settings,
        payload=Payload,
        needs=lambda settings: frozenset({MEAN}),
        empty=lambda dimension, settings: Goals((), np.empty((0, dimension))),
        admit=_admit,
        remove=_remove,
        start=lambda state, settings, rng: state,
        users=lambda state: state.users,
        task=_task,
        check=_check,
        step=_step,
        class_matrix=lambda state: (state.users, state.goals),
        report=lambda state, settings: {"share": settings.share},
    )
'''

CLIENT = '''
    """The device's half."""

    from dataclasses import dataclass

    import numpy as np
    import torch

    from uvsdk.errors import UpdateRejectedError
    from uvsdk.federation.algorithms.halfway.payload import Payload, Settings, Task
    from uvsdk.federation.strategy import ClientAlgorithm


    @dataclass(frozen=True, slots=True)
    class Goal:
        goal: torch.Tensor


    def _begin(task, memory, embed, settings, rng, secret):
        if not abs(float(np.linalg.norm(task.goal)) - 1) < 1e-3:
            raise UpdateRejectedError("the goal is not a unit vector")
        return Goal(torch.tensor(np.array(task.goal)))


    def _finish(local, embed, settings, rng, secret):
        mean = embed().mean(dim=0)
        return Payload((mean / mean.norm()).numpy()), {}


    CLIENT = ClientAlgorithm(
        task=Task,
        begin=_begin,
        parameters=lambda local, settings: (),
        rate=lambda settings: 0.0,
        loss=lambda embeddings, classes, local, settings: (1 - embeddings @ local.goal).mean(),
        constrain=lambda local, settings: None,
        finish=_finish,
    )
'''


def write_method(folder: Path) -> None:
    """The folder of the method, under ``folder``."""
    package = folder / NAME
    package.mkdir(parents=True)
    files = {
        "__init__.py": '    """A method of a test."""',
        "payload.py": PAYLOAD,
        "server.py": SERVER,
        "client.py": CLIENT,
    }
    for file, text in files.items():
        (package / file).write_text(dedent(text).lstrip())


def run_contract(folder: Path) -> subprocess.CompletedProcess[str]:
    """The contract suite, for that method alone, where it is in ``folder``."""
    tests = str(ROOT / "tests" / "contract" / "test_algorithms.py")
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-k", NAME, tests],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={**os.environ, "UVSDK_TEST_ALGORITHMS": str(folder), "OMP_NUM_THREADS": "1"},
    )


def test_it_passes_with_no_other_edit(tmp_path: Path) -> None:
    write_method(tmp_path)
    result = run_contract(tmp_path)
    assert result.returncode == 0, result.stdout[-4000:]
    passed = re.search(r"(\d+) passed", result.stdout)
    assert passed
    assert int(passed[1]) >= 40, result.stdout


def test_one_that_says_less_than_it_sends_does_not(tmp_path: Path) -> None:
    write_method(tmp_path)
    payload = tmp_path / NAME / "payload.py"
    payload.write_text(payload.read_text().replace("the direction of this person's embeddings", "something"))
    result = run_contract(tmp_path)
    assert result.returncode == 1
    failed = re.findall(r"FAILED \S+::(\w+)\[", result.stdout)
    assert failed == ["test_the_disclosure_names_every_field"], result.stdout[-4000:]
