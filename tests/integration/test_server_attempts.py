"""The retry policy of ``POST /v1/verify``: over real HTTP, on SQLite and PostgreSQL, under threads and kill -9."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import io
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np
import pytest
from PIL import Image

from tests.integration import harness
from tests.integration.harness import ROOT, KillableServer, RunningServer, SyntheticDevice, kind
from tests.integration.test_store import fresh, migrated, postgres
from uvsdk.attempts import Attempts, RetryPolicy
from uvsdk.bundle import shipped
from uvsdk.cli import main
from uvsdk.errors import DisabledError, NoInkError, ThresholdError, TooManyAttemptsError
from uvsdk.scoring import Decision, Threshold
from uvsdk_server.attempts import AttemptGate
from uvsdk_server.monitoring import Metrics
from uvsdk_server.problems import Problem
from uvsdk_server.store import counts, schema
from uvsdk_server.store.counts import Subject
from uvsdk_server.store.database import Database

__all__ = ["postgres"]  # a fixture

USER, TOKEN = "a" * 64, "0123456789ab"


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Setting:
    """A gate on a real database, with one user in it."""

    def __init__(self, database: Database, *, person: RetryPolicy | None = None, caller: int = 100) -> None:
        self.clock = Clock()
        self.metrics = Metrics()
        self.database = database
        policies = {"person": person or RetryPolicy(), "caller": RetryPolicy(caller, disabled_at=10 * caller)}
        self.gate = AttemptGate(database, policies, self.metrics, self.clock)
        self.compared = 0

    async def ask(self, accepted: bool, *, user: str = USER, token: str = TOKEN) -> bool:
        async def compare() -> Decision:
            self.compared += 1
            await asyncio.sleep(0.001)
            return Decision(0.9 if accepted else 0.1, Threshold(0.5, 0.01, 1000), "m")

        return (await self.gate.decide(user, token, compare)).accepted

    async def state(self, subject: Subject) -> Attempts:
        async with self.database.read() as connection:
            return (await counts.read(connection, [subject]))[subject]


@contextlib.asynccontextmanager
async def opened(url: str, **values: object) -> AsyncIterator[Setting]:
    async with migrated(url) as database:
        async with database.write() as connection:
            for user in (USER, "b" * 64):
                await connection.execute(schema.users.insert().values(user=user, created=0.0, admitted=True))
        setting = Setting(database, **values)  # type: ignore[arg-type]
        yield setting
        await setting.gate.close()


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite+aiosqlite:///{tmp_path}/store.sqlite3"
    return fresh(request.getfixturevalue("postgres"))


@pytest.fixture
def sqlite(tmp_path: Path) -> str:
    return f"sqlite+aiosqlite:///{tmp_path}/store.sqlite3"


def test_the_policy_on_both_databases(url: str) -> None:
    async def check() -> None:
        async with opened(url) as setting:
            for _ in range(5):
                assert not await setting.ask(False)
            with pytest.raises(TooManyAttemptsError, match="this person") as caught:
                await setting.ask(True)
            assert caught.value.retry_after_s == 30
            setting.clock.now += 30
            assert not await setting.ask(False)
            setting.clock.now += 59
            with pytest.raises(TooManyAttemptsError):
                await setting.ask(True)
            setting.clock.now += 1
            assert await setting.ask(True)
            assert setting.compared == 7
            for subject in (Subject("person", USER), Subject("caller", TOKEN)):
                assert await setting.state(subject) == Attempts()
            async with setting.database.read() as connection:
                assert await counts.listed(connection, 10) == []  # nothing to count takes no row
            with pytest.raises(Problem, match="nobody of that id"):
                await setting.ask(True, user="c" * 64)

    asyncio.run(check())


def test_fifty_at_once_get_five_comparisons_and_the_right_person_all(url: str) -> None:
    async def check() -> None:
        async with opened(url) as setting:
            answers = await asyncio.gather(*(setting.ask(True) for _ in range(50)))
            assert answers == [True] * 50
            assert setting.compared == 50
            results = await asyncio.gather(*(setting.ask(False) for _ in range(50)), return_exceptions=True)
            assert [item for item in results if isinstance(item, bool)] == [False] * 5
            assert sum(isinstance(item, TooManyAttemptsError) for item in results) == 45
            assert setting.compared == 55
            assert await setting.state(Subject("person", USER)) == Attempts(5, 0, 1000.0)
            assert not setting.gate._undecided
            refused = setting.metrics.refused_attempts.labels("person", "later")
            assert refused._value.get() == 45

    asyncio.run(check())


def test_a_caller_who_tries_one_person_after_another_is_stopped(sqlite: str) -> None:
    async def check() -> None:
        async with opened(sqlite, caller=3) as setting:
            for user in (USER, "b" * 64, USER):
                assert not await setting.ask(False, user=user)
            with pytest.raises(TooManyAttemptsError, match="this caller"):
                await setting.ask(True, user="b" * 64)
            assert await setting.ask(True, user="b" * 64, token="ffff")
            assert (await setting.state(Subject("person", USER))).failures == 2

    asyncio.run(check())


def test_disabled_until_the_operator_resets_it(sqlite: str) -> None:
    async def check() -> None:
        policy = RetryPolicy(2, first_delay_s=1.0, longest_delay_s=1.0, disabled_at=3)
        async with opened(sqlite, person=policy) as setting:
            for _ in range(3):
                assert not await setting.ask(False)
                setting.clock.now += 10
            setting.clock.now += 1e9
            with pytest.raises(DisabledError, match="operator"):
                await setting.ask(True)
            async with setting.database.write() as connection:
                assert await counts.reset(connection, Subject("person", USER))
                assert not await counts.reset(connection, Subject("person", USER))
            assert await setting.ask(True)

    asyncio.run(check())


def test_what_is_no_comparison(sqlite: str) -> None:
    async def check() -> None:
        async with opened(sqlite) as setting:

            async def raising(error: Exception) -> Decision:
                raise error

            for number in range(10):
                assert (await setting.state(Subject("person", USER))).failures == 0, number
                with pytest.raises(NoInkError):
                    await setting.gate.decide(USER, TOKEN, lambda: raising(NoInkError("empty")))
            assert await setting.state(Subject("person", USER)) == Attempts(1, 10, 1000.0)
            for _ in range(20):
                with pytest.raises(ThresholdError):
                    await setting.gate.decide(USER, TOKEN, lambda: raising(ThresholdError("none")))
            assert (await setting.state(Subject("person", USER))).failures == 1

    asyncio.run(check())


def test_who_hangs_up_while_it_is_compared_is_counted_and_holds_nobody_up(sqlite: str) -> None:
    async def check() -> None:
        async with opened(sqlite) as setting:

            async def endless() -> Decision:
                await asyncio.sleep(3600)
                raise AssertionError

            tasks = [asyncio.create_task(setting.gate.decide(USER, TOKEN, endless)) for _ in range(4)]
            await asyncio.sleep(0.2)
            fifth = asyncio.create_task(setting.gate.decide(USER, TOKEN, endless))
            await asyncio.sleep(0.2)
            waiting = asyncio.create_task(setting.ask(True))
            await asyncio.sleep(0.2)
            assert not waiting.done()  # five are under way: their outcome decides
            for task in [*tasks, fifth]:
                task.cancel()
            with pytest.raises(TooManyAttemptsError):
                await waiting
            assert (await setting.state(Subject("person", USER))).failures == 5
            assert not setting.gate._undecided
            setting.clock.now += 30
            # A cancelled request that still waits for its turn leaves nothing behind.
            gone = asyncio.create_task(setting.ask(False))
            gone.cancel()
            with pytest.raises(asyncio.CancelledError):
                await gone
            assert await setting.ask(True)

    asyncio.run(check())


def test_a_person_who_leaves_meanwhile_leaves_no_count(sqlite: str) -> None:
    async def check() -> None:
        async with opened(sqlite) as setting:

            async def leave() -> Decision:
                from uvsdk_server.store import ledger

                async with setting.database.write() as connection:
                    await ledger.forget_user(connection, USER)
                return Decision(0.1, Threshold(0.5, 0.01, 1000), "m")

            assert not (await setting.gate.decide(USER, TOKEN, leave)).accepted
            async with setting.database.read() as connection:
                listed = await counts.listed(connection, 10)
            assert [subject for subject, _ in listed] == [Subject("caller", TOKEN)]

    asyncio.run(check())


KILLED = """
import asyncio, os, signal, sys
from uvsdk.attempts import RetryPolicy
from uvsdk_server.attempts import AttemptGate
from uvsdk_server.monitoring import Metrics
from uvsdk_server.store.database import Database

async def compare():
    print("compared", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

async def attempt():
    gate = AttemptGate(Database(sys.argv[1]), dict(person=RetryPolicy(), caller=RetryPolicy()), Metrics())
    await gate.decide("a" * 64, "0123456789ab", compare)

asyncio.run(attempt())
"""


def test_kill_9_while_it_compares_leaves_the_attempt_counted(tmp_path: Path) -> None:
    url = f"sqlite+aiosqlite:///{tmp_path}/store.sqlite3"

    async def counted(before: int) -> None:
        async with opened(url) if not before else contextlib.nullcontext():
            pass
        done = subprocess.run(
            [sys.executable, "-c", KILLED, url],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(str(ROOT / part) for part in (".", "server", "device"))},
        )
        assert (done.returncode, done.stdout) == (-signal.SIGKILL, "compared\n"), done.stderr
        async with migrated(url) as database, database.read() as connection:
            subjects = [Subject("person", USER), Subject("caller", TOKEN)]
            assert [state.failures for state in (await counts.read(connection, subjects)).values()] == [before + 1] * 2

    for before in range(2):
        asyncio.run(counted(before))


# Over HTTP

SETTINGS = {"start_after_users": 1000, "quality": "standard", "retry_delay_s": 30}


def page(*, blank: bool = False) -> str:
    file = io.BytesIO()
    ink = np.full((64, 64), 255, np.uint8)
    if not blank:
        ink[10:54, 28:36] = 0
    Image.fromarray(ink).save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    with harness.serving(tmp_path, settings=SETTINGS) as running:
        yield running


def joined(server: RunningServer, number: int = 1) -> SyntheticDevice:
    device = SyntheticDevice(server, number)
    device.join(server.token("enrol"))
    assert device.leave_template().status_code == 204
    return device


def probe(device: SyntheticDevice, *, right: bool) -> dict[str, object]:
    direction = device.direction(0) if right else -device.direction(0)
    return {"user": device.user, "embedding": direction.tolist(), "model_version": shipped().version}


def test_fifty_clients_at_once_over_http(server: RunningServer) -> None:
    device = joined(server)
    body, url = probe(device, right=False), f"{server.url}/v1/verify"
    headers = {"Authorization": f"Bearer {server.token('verify')}"}

    limits = httpx.Limits(max_connections=50)
    with httpx.Client(headers=headers, limits=limits, timeout=60) as client, ThreadPoolExecutor(50) as pool:
        answers = list(pool.map(lambda _: client.post(url, json=body), range(50)))
    statuses = [answer.status_code for answer in answers]
    assert statuses.count(200) == 5
    assert statuses.count(429) == 45
    assert not any(answer.json()["accepted"] for answer in answers if answer.status_code == 200)
    refused = next(answer for answer in answers if answer.status_code == 429)
    assert kind(refused) == "too-many-attempts"
    assert 25 <= int(refused.headers["retry-after"]) <= 30
    # The right person waits too, under another token as well: it is that person's count.
    answer = server.ask("POST", "/v1/verify", json=probe(device, right=True))
    assert (answer.status_code, kind(answer)) == (429, "too-many-attempts")
    listed = server.ask("GET", "/v1/attempts").json()["attempts"]
    assert {item["whose"]: item["failures"] for item in listed} == {"person": 5, "caller": 5}
    assert all(set(item) == {"whose", "name", "failures", "unusable", "wait_s", "disabled"} for item in listed)
    assert server.ask("GET", "/v1/attempts", token=server.token("verify")).status_code == 403
    target = f"/v1/attempts/person/{device.user}"
    assert server.ask("DELETE", target, token=server.token("verify")).status_code == 403
    for _ in range(2):
        assert server.ask("DELETE", target).status_code == 204
    assert server.ask("POST", "/v1/verify", json=probe(device, right=True)).json()["accepted"]
    metrics = server.ask("GET", "/metrics").text
    assert 'uvsdk_refused_attempts_total{until="later",whose="person"} 46.0' in metrics
    assert server.ask("DELETE", "/v1/attempts/nobody/ab").status_code == 422


def test_disabled_over_http_and_reset_by_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"start_after_users": 1000, "failures_before_delay": 2, "failures_before_disabled": 2}
    with harness.serving(tmp_path, settings=settings) as server:
        device = joined(server)
        for _ in range(2):
            assert not server.ask("POST", "/v1/verify", json=probe(device, right=False)).json()["accepted"]
        answer = server.ask("POST", "/v1/verify", json=probe(device, right=True))
        assert (answer.status_code, kind(answer)) == (423, "disabled")
        data = ["--data", str(server.data)]
        monkeypatch.setenv("UVSDK_SERVER_FAILURES_BEFORE_DELAY", "2")
        monkeypatch.setenv("UVSDK_SERVER_FAILURES_BEFORE_DISABLED", "2")
        assert main(["lockouts", *data, "list"]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines[0].split() == ["whose", "name", "failures", "unusable", "next"]
        assert sorted(line.split()[0] for line in lines[1:]) == ["caller", "person"]
        assert any(device.user in line and line.endswith("disabled") for line in lines)
        assert main(["lockouts", *data, "reset", "person", device.user]) == 0
        assert main(["lockouts", *data, "reset", "person", device.user]) == 1
        assert "no failures are counted" in capsys.readouterr().err
        # The running server holds no copy: what the command reset holds at once.
        assert server.ask("POST", "/v1/verify", json=probe(device, right=True)).json()["accepted"]
        # Leaving takes the count along.
        assert not server.ask("POST", "/v1/verify", json=probe(device, right=False)).json()["accepted"]
        assert server.ask("DELETE", f"/v1/users/{device.user}").status_code == 204
        listed = server.ask("GET", "/v1/attempts").json()["attempts"]
        assert [item["whose"] for item in listed] == ["caller"]


def test_kill_9_and_a_restart_keep_the_count(tmp_path: Path) -> None:
    server = KillableServer(tmp_path, settings={"start_after_users": 1000})
    server.start()
    try:
        device = joined(server)
        for _ in range(5):
            assert not server.ask("POST", "/v1/verify", json=probe(device, right=False)).json()["accepted"]
        assert server.process is not None
        server.process.kill()
        assert server.restart_if_dead()
        answer = server.ask("POST", "/v1/verify", json=probe(device, right=True))
        assert (answer.status_code, kind(answer)) == (429, "too-many-attempts")
        assert int(answer.headers["retry-after"]) <= 30
    finally:
        server.stop()


def test_a_caller_may_be_stricter_and_not_laxer(server: RunningServer) -> None:
    device = joined(server)
    good = {"user": device.user, "sample": page()}
    for stricter in ({"quality": "strict"}, {"quality": "standard"}, {"faces": "only"}, {"faces": "single"}):
        answer = server.ask("POST", "/v1/verify", json={**good, **stricter})
        assert answer.status_code == 200, answer.text
        assert set(answer.json()) == {
            "accepted",
            "score",
            "llr",
            "threshold",
            "model_version",
            "quality",
            "presentations",
        }
        assert answer.json()["threshold"]["scale"] in ("cosine", "llr")
        assert server.ask("DELETE", f"/v1/attempts/person/{device.user}").status_code == 204
    for laxer, detail in (({"quality": "off"}, "laxer than 'standard'"), ({"faces": "largest"}, "laxer than 'single'")):
        answer = server.ask("POST", "/v1/verify", json={**good, **laxer})
        assert (answer.status_code, kind(answer)) == (422, "invalid-request")
        assert detail in answer.json()["detail"]
    for wrong in ({"quality": "loose"}, {"faces": 1}):
        answer = server.ask("POST", "/v1/verify", json={**good, **wrong})
        assert (answer.status_code, kind(answer)) == (422, "invalid-request")
    answer = server.ask("POST", "/v1/verify", json={**probe(device, right=True), "quality": "strict"})
    assert (answer.status_code, kind(answer)) == (422, "invalid-request")
    # None of these was an attempt.
    assert [item["whose"] for item in server.ask("GET", "/v1/attempts").json()["attempts"]] in ([], ["caller"])


def test_an_acceptance_at_a_higher_rate_takes_no_failure_back(server: RunningServer) -> None:
    device = joined(server)
    for _ in range(3):
        assert not server.ask("POST", "/v1/verify", json=probe(device, right=False)).json()["accepted"]
    for fmr, left in ((0.9, 3), (0.005, 0)):
        assert server.ask("POST", "/v1/verify", json={**probe(device, right=True), "fmr": fmr}).json()["accepted"]
        listed = server.ask("GET", "/v1/attempts").json()["attempts"]
        assert [item["failures"] for item in listed] == [left] * len(listed)
        assert bool(listed) == bool(left)


def test_ten_blank_pages_are_one_failure(server: RunningServer) -> None:
    device = joined(server)
    for _ in range(10):
        answer = server.ask("POST", "/v1/verify", json={"user": device.user, "sample": page(blank=True)})
        assert (answer.status_code, kind(answer)) == (422, "no-ink")
    listed = server.ask("GET", "/v1/attempts").json()["attempts"]
    assert {item["whose"]: (item["failures"], item["unusable"]) for item in listed} == {
        "person": (1, 10),
        "caller": (1, 10),
    }
    assert 'uvsdk_verifications_total{outcome="unusable"} 10.0' in server.ask("GET", "/metrics").text


def test_the_description_says_what_verification_answers(server: RunningServer) -> None:
    description = server.ask("GET", "/openapi.json", token="").json()
    operation = description["paths"]["/v1/verify"]["post"]
    assert {"200", "400", "401", "403", "404", "409", "413", "422", "423", "429"} <= set(operation["responses"])
    assert "Retry-After" in operation["description"]
    schemas = description["components"]["schemas"]
    for name in ("VerifyRequest", "VerifyAnswer"):
        assert schemas[name]["examples"], name
    assert set(schemas["VerifyAnswer"]["examples"][0]) == set(schemas["VerifyAnswer"]["properties"])
    assert {"quality", "faces", "fmr"} <= set(schemas["VerifyRequest"]["properties"])
    assert {"get", "delete"} <= set(description["paths"]["/v1/attempts"]) | set(
        description["paths"]["/v1/attempts/{whose}/{name}"]
    )
