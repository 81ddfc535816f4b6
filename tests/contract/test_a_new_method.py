"""A method that nobody here knows, added as a folder and nothing else, is known to everything else there is.

It is added to a copy of the house, in which nothing but its folder changes: the contract suite, the commands, import
contracts, documents, a simulation, a real server and real devices take it as they take the others.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

import pytest

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
        direction: torch.Tensor


    def _begin(task, memory, embed, settings, rng, secret):
        if not abs(float(np.linalg.norm(task.goal)) - 1) < 1e-3:
            raise UpdateRejectedError("the goal is not a unit vector")
        mean = embed().mean(dim=0)
        return Goal(torch.tensor(np.array(task.goal)), mean / mean.norm())


    def _finish(local, embed, settings, rng, secret):
        return Payload(local.direction.numpy()), {}


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
        "__init__.py": '    """A method of a test. Not from a paper."""',
        "payload.py": PAYLOAD,
        "server.py": SERVER,
        "client.py": CLIENT,
    }
    for file, text in files.items():
        (package / file).write_text(dedent(text).lstrip())


@dataclass(frozen=True)
class House:
    """A copy of all that is here with the method's folder in it; ``contents`` is every file's digest without it."""

    root: Path
    contents: dict[str, str]

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a program of the copy, which changes no file of it."""
        paths = [self.root, self.root / "server", self.root / "device"]
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            cwd=self.root,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths)), "OMP_NUM_THREADS": "1"},
        )
        assert self.changed() == set()
        return done

    def passed(self, *arguments: str) -> Counter[str]:
        """How many tests of each file of the copy pass; fails where one does not."""
        done = self.run(sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", "-p", "no:xdist", *arguments)
        assert done.returncode == 0, done.stdout[-4000:]
        return Counter(re.findall(r"^tests/(\S+\.py)::.* PASSED ", done.stdout, re.MULTILINE))

    def changed(self) -> set[str]:
        """Files outside the method's folder that are not as they were."""
        now = contents(self.root)
        return {name for name in now.keys() | self.contents.keys() if now.get(name) != self.contents.get(name)}


def contents(root: Path) -> dict[str, str]:
    """Digest of every file but the method's own and what Python compiles."""
    files = (path for path in root.rglob("*") if path.is_file() and not {"__pycache__", NAME} & set(path.parts))
    return {str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def build(root: Path) -> House:
    pytest.importorskip("torch", reason="what trains a method needs the train extra")
    for name in ("uvsdk", "server", "device", "tests", "docs", "examples"):
        shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__", "benchmarks"))
    for path in [*ROOT.glob("*.md"), ROOT / "pyproject.toml", ROOT / "LICENSE", ROOT / "Makefile"]:
        shutil.copy(path, root)
    known = contents(root)
    write_method(root / "uvsdk" / "federation" / "algorithms")
    return House(root, known)


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> House:
    return build(tmp_path_factory.mktemp("house"))


@pytest.fixture(scope="module")
def passed(house: House) -> Counter[str]:
    """What is there for every method, in one process, for each takes seconds to begin."""
    files = (
        "contract/test_algorithms.py",
        "unit/test_simulation.py",
        "integration/test_methods_even.py",
        "integration/test_methods_odd.py",
        "architecture/test_imports.py",
        "architecture/test_citations.py",
        "vectors/test_vectors.py",
        "unit/test_transfer.py",
    )
    return house.passed("-k", f"{NAME} or without_torch or of_nothing", *(f"tests/{file}" for file in files))


def test_it_keeps_the_contract(passed: Counter[str]) -> None:
    assert passed["contract/test_algorithms.py"] >= 40


def test_commands_and_import_contracts_know_it(house: House) -> None:
    listed = house.run(sys.executable, "-m", "uvsdk", "algorithms")
    assert f"\n{NAME}\n  sent each round: the change of the trunk; the direction of" in listed.stdout, listed.stderr
    pytest.importorskip("importlinter")
    contracts = house.run(str(Path(sys.executable).with_name("lint-imports")), "--no-cache")
    assert contracts.returncode == 0, contracts.stdout[-4000:]
    payload = house.root / "uvsdk" / "federation" / "algorithms" / NAME / "payload.py"
    text = payload.read_text()
    try:
        payload.write_text("import torch\n" + text)
        assert house.run(str(Path(sys.executable).with_name("lint-imports")), "--no-cache").returncode == 1
    finally:
        payload.write_text(text)


def test_a_simulation_a_server_and_devices_run_it(passed: Counter[str]) -> None:
    assert passed["unit/test_simulation.py"] >= 3
    assert passed["integration/test_methods_even.py"] + passed["integration/test_methods_odd.py"] == 1


def test_documents_and_lists_know_it(house: House, passed: Counter[str]) -> None:
    """The tables of ``docs/privacy.md`` are written by a command, which changes nothing else."""
    files = ("architecture/test_imports.py", "architecture/test_citations.py", "vectors/test_vectors.py")
    assert sum(passed[file] for file in (*files, "unit/test_transfer.py")) >= 8
    document = house.root / "docs" / "privacy.md"
    before = document.read_text()
    try:
        subprocess.run(
            [sys.executable, "-m", "tests.architecture.test_privacy"],
            check=True,
            cwd=house.root,
            env={**os.environ, "PYTHONPATH": str(house.root)},
        )
        assert house.changed() == {"docs/privacy.md"}
        assert document.read_text().count(f"| `{NAME}` |") == 2
    finally:
        document.write_text(before)


def test_one_that_says_less_than_it_sends_does_not_keep_the_contract(tmp_path: Path) -> None:
    house = build(tmp_path)
    payload = house.root / "uvsdk" / "federation" / "algorithms" / NAME / "payload.py"
    payload.write_text(payload.read_text().replace("the direction of this person's embeddings", "something"))
    result = house.run(
        sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-k", NAME,
        "tests/contract/test_algorithms.py",
    )  # fmt: skip
    assert result.returncode == 1
    failed = re.findall(r"FAILED \S+::(\w+)\[", result.stdout)
    assert failed == ["test_the_disclosure_names_every_field"], result.stdout[-4000:]
