"""The retry policy of ``POST /v1/verify``: over real HTTP, on SQLite and PostgreSQL, under threads and kill -9."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import httpx
import numpy as np
import pytest

from tests.builders import Clock, image_file
from tests.integration import harness
from tests.integration.harness import ROOT, KillableServer, RunningServer, SyntheticDevice, kind
from tests.integration.test_store import migrated
from uvsdk.bundle import shipped
from uvsdk.cli import main
from uvsdk.errors import DisabledError, NoInkError, ThresholdError, TooManyAttemptsError
from uvsdk.rest.problems import Problem
from uvsdk.scoring import Decision, Threshold
from uvsdk.templates.attempts import Attempts, RetryPolicy
from uvsdk_server.attempts import AttemptGate
from uvsdk_server.monitoring import Metrics
from uvsdk_server.store import audit, counts, schema
from uvsdk_server.store.counts import Subject
from uvsdk_server.store.database import Database

USER, OTHER, TOKEN = "a" * 64, "b" * 64, "0123456789ab"
PAIR = Subject(TOKEN, USER)


class Setting:
    """A gate on a real database, with one user in it."""

    def __init__(
        self, database: Database, *, pair: RetryPolicy | None = None, caller: int = 60, person: int = 10
    ) -> None:
        self.clock = Clock()
        self.metrics = Metrics()
        self.database = database
        policies = {
            "pair": pair or RetryPolicy(),
            "person": RetryPolicy.windows(per_hour=person, per_day=50),
            "caller": RetryPolicy.windows(per_hour=caller, per_day=300),
        }
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
            for user in (USER, OTHER):
                await connection.execute(schema.users.insert().values(user=user, created=0.0, admitted=True))
        setting = Setting(database, **values)  # type: ignore[arg-type]
        yield setting
        await setting.gate.close()


@pytest.fixture
def sqlite(tmp_path: Path) -> str:
    return f"sqlite+aiosqlite:///{tmp_path}/store.sqlite3"


def test_the_policy_on_both_databases(url: str) -> None:
    async def check() -> None:
        async with opened(url) as setting:
            for _ in range(5):
                assert not await setting.ask(False)
            with pytest.raises(TooManyAttemptsError, match="this person by this caller") as caught:
                await setting.ask(True)
            assert caught.value.retry_after_s == 30
            setting.clock.now_s += 30
            assert not await setting.ask(False)
            setting.clock.now_s += 59
            with pytest.raises(TooManyAttemptsError):
                await setting.ask(True)
            setting.clock.now_s += 1
            assert await setting.ask(True)
            assert setting.compared == 7
            # In a row there is nothing left; the six stay in every window, less what ran out in 90 s.
            pair = await setting.state(PAIR)
            assert (pair.failures, pair.accepted_s) == (0, setting.clock.now_s)
            for subject, per_hour in ((PAIR, 20), (Subject(user=USER), 10), (Subject(TOKEN), 60)):
                left = 6 - 90 * per_hour / 3600
                assert (await setting.state(subject)).recent.hour == pytest.approx(left, abs=0.01), subject
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
            pair = await setting.state(PAIR)
            assert (pair.failures, pair.recent.hour, pair.since_s) == (5, 5, 1000.0)
            assert not setting.gate._undecided
            refused = setting.metrics.refused_attempts.labels("pair", "later")
            assert refused._value.get() == 45

    asyncio.run(check())


def test_a_caller_who_tries_one_person_after_another_is_stopped(sqlite: str) -> None:
    async def check() -> None:
        async with opened(sqlite, caller=3) as setting:
            for user in (USER, OTHER, USER):
                assert not await setting.ask(False, user=user)
                if user == OTHER:
                    assert await setting.ask(True, user=user)  # one's own takes nothing of the others back
            with pytest.raises(TooManyAttemptsError, match="lately for this caller"):
                await setting.ask(True, user=OTHER)
            assert await setting.ask(True, user=OTHER, token="ffff")
            assert (await setting.state(PAIR)).failures == 2
            setting.clock.now_s += 3600 / 3
            assert await setting.ask(True, user=OTHER)

    asyncio.run(check())


def test_spraying_over_thirty_five_people_is_slowed(sqlite: str) -> None:
    """Four failures at each, one's own acceptance in between: 140 met no delay while that reset the count."""

    async def check() -> None:
        async with opened(sqlite) as setting:
            people = [f"{number:064x}" for number in range(35)]
            async with setting.database.write() as connection:
                for user in people:
                    await connection.execute(schema.users.insert().values(user=user, created=0.0, admitted=True))
            failed = 0
            for user in people:
                for _ in range(4):
                    try:
                        await setting.ask(False, user=user)
                    except TooManyAttemptsError:
                        continue
                    failed += 1
                with contextlib.suppress(TooManyAttemptsError):
                    await setting.ask(True, user=OTHER)
            assert failed == 60

    asyncio.run(check())


def test_a_stranger_locks_nobody_out(url: str) -> None:
    """However many tokens fail at a person, a caller through whom that person was accepted goes on."""

    async def check() -> None:
        async with opened(url) as setting:
            assert await setting.ask(True)
            compared = setting.compared
            for number in range(10):
                for _ in range(10):
                    with contextlib.suppress(TooManyAttemptsError):
                        await setting.ask(False, token=f"{number:012x}")
            # Together the strangers had ten attempts, and any further one waits.
            assert setting.compared - compared == 10
            with pytest.raises(TooManyAttemptsError, match="by callers who do not know them"):
                await setting.ask(True, token="f" * 12)
            assert await setting.ask(True)
            assert await setting.ask(True, user=OTHER, token="f" * 12)
            # After a while a stranger has a turn again, and once accepted is none.
            setting.clock.now_s += 3600 / 10
            assert await setting.ask(True, token="f" * 12)
            for _ in range(3):
                assert await setting.ask(True, token="f" * 12)
            # An acceptance of long ago makes nobody known.
            setting.clock.now_s += 91 * 86_400
            for number in range(100, 110):
                assert not await setting.ask(False, token=f"{number:012x}")
            with pytest.raises(TooManyAttemptsError):
                await setting.ask(True)

    asyncio.run(check())


def test_two_processes_on_one_database_lose_no_count(url: str) -> None:
    """Two gates, each with connections of its own, as two processes have; at READ COMMITTED on PostgreSQL."""

    async def check() -> None:
        async with opened(url, caller=1000, person=1000) as one, migrated(url) as database:
            wide = RetryPolicy(1000, disabled_at=1000, per_hour=1000, per_day=1000)
            many = {"pair": wide, "person": wide, "caller": wide}
            gates = [AttemptGate(base, many, Metrics(), one.clock) for base in (one.database, database)]

            async def rejected() -> Decision:
                await asyncio.sleep(0)
                return Decision(0.1, Threshold(0.5, 0.01, 1000), "m")

            await asyncio.gather(*(gate.decide(USER, TOKEN, rejected) for gate in gates for _ in range(40)))
            for subject in (PAIR, Subject(user=USER), Subject(TOKEN)):
                state = await one.state(subject)
                assert (state.failures, state.recent.day) == (80, 80), subject
            for gate in gates:
                await gate.close()

    asyncio.run(check())


def test_a_score_that_is_told_counts_whatever_became_of_it(sqlite: str) -> None:
    async def check() -> None:
        async with opened(sqlite) as setting:

            async def accepted() -> Decision:
                return Decision(0.9, Threshold(0.5, 0.01, 1000), "m")

            for _ in range(20):
                assert (await setting.gate.decide(USER, TOKEN, accepted, told=True)).accepted
            with pytest.raises(TooManyAttemptsError, match="lately for this person by this caller"):
                await setting.gate.decide(USER, TOKEN, accepted, told=True)

    asyncio.run(check())


def test_rows_that_say_nothing_any_more_go(sqlite: str) -> None:
    async def check() -> None:
        async with opened(sqlite) as setting:
            assert await setting.ask(True)
            assert not await setting.ask(False, user=OTHER)
            setting.clock.now_s += 2 * 86_400
            assert await setting.ask(True, user=OTHER, token="ffff")
            async with setting.database.read() as connection:
                left = {(row.caller, row.user) for row in (await connection.execute(schema.attempts.select())).all()}
            # The windows have run dry; that somebody failed in a row, or was accepted, is still known.
            assert left == {(TOKEN, USER), (TOKEN, OTHER), ("ffff", OTHER)}
            setting.clock.now_s += 91 * 86_400
            assert await setting.ask(True, user=OTHER, token="ffff")
            async with setting.database.read() as connection:
                left = {(row.caller, row.user) for row in (await connection.execute(schema.attempts.select())).all()}
            assert left == {(TOKEN, OTHER), ("ffff", OTHER)}

    asyncio.run(check())


def test_disabled_until_the_operator_resets_it(sqlite: str) -> None:
    async def check() -> None:
        policy = RetryPolicy(2, first_delay_s=1.0, longest_delay_s=1.0, disabled_at=3)
        async with opened(sqlite, pair=policy) as setting:
            for _ in range(3):
                assert not await setting.ask(False)
                setting.clock.now_s += 10
            setting.clock.now_s += 1e9
            with pytest.raises(DisabledError, match="operator"):
                await setting.ask(True)
            reset = partial(counts.reset, mark=lambda _: "m" * 32, now=0.0, by=audit.COMMAND)
            async with setting.database.write() as connection:
                assert await reset(connection, Subject(user=USER))
                assert not await reset(connection, Subject(user=USER))
                assert not await reset(connection, PAIR)
                (entry,) = await audit.listed(connection)  # what changed nothing is not told
            assert (entry.action, entry.subject) == ("attempts-reset", "m" * 32)
            assert await setting.ask(True)

    asyncio.run(check())


def test_what_is_no_comparison(sqlite: str) -> None:
    async def check() -> None:
        async with opened(sqlite) as setting:

            async def raising(error: Exception) -> Decision:
                raise error

            for number in range(10):
                assert (await setting.state(PAIR)).failures == 0, number
                with pytest.raises(NoInkError):
                    await setting.gate.decide(USER, TOKEN, lambda: raising(NoInkError("empty")))
            state = await setting.state(PAIR)
            assert (state.failures, state.unusable, state.recent.hour) == (1, 10, pytest.approx(1.0))
            for _ in range(20):
                with pytest.raises(ThresholdError):
                    await setting.gate.decide(USER, TOKEN, lambda: raising(ThresholdError("none")))
            state = await setting.state(PAIR)
            assert (state.failures, state.recent.hour) == (1, pytest.approx(1.0))

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
            assert (await setting.state(PAIR)).failures == 5
            assert not setting.gate._undecided
            setting.clock.now_s += 30
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
                listed = await counts.list_counts(connection, 10)
            assert [subject for subject, _ in listed] == [Subject(TOKEN)]

    asyncio.run(check())


KILLED = """
import asyncio, os, signal, sys
from uvsdk.templates.attempts import RetryPolicy
from uvsdk_server.attempts import AttemptGate
from uvsdk_server.monitoring import Metrics
from uvsdk_server.store.database import Database

async def compare():
    print("compared", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

async def attempt():
    policies = dict(pair=RetryPolicy(), person=RetryPolicy(), caller=RetryPolicy())
    gate = AttemptGate(Database(sys.argv[1]), policies, Metrics())
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
            found = await counts.read(connection, [PAIR, Subject(user=USER), Subject(TOKEN)])
            assert [state.failures for state in found.values()] == [before + 1] * 3
            assert all(before < state.recent.day <= before + 1 for state in found.values())

    for before in range(2):
        asyncio.run(counted(before))


# Over HTTP

SETTINGS = {"start_after_users": 1000, "quality": "standard", "retry_delay_s": 30}


def page(*, blank: bool = False) -> str:
    ink = np.full((64, 64), 255, np.uint8)
    if not blank:
        ink[10:54, 28:36] = 0
    return base64.b64encode(image_file(ink)).decode()


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
    headers = {"Authorization": f"Bearer {server.token('verify', 'embeddings')}"}

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
    # The right person waits under that token too, and under no other.
    answer = httpx.post(url, json=probe(device, right=True), headers=headers)
    assert (answer.status_code, kind(answer)) == (429, "too-many-attempts")
    other = server.token("verify", "embeddings")
    assert server.ask("POST", "/v1/verify", token=other, json=probe(device, right=True)).json()["accepted"]
    listed = server.ask("GET", "/v1/attempts").json()["attempts"]
    assert {item["whose"]: item["failures"] for item in listed} == {"pair": 5, "person": 0, "caller": 5}
    assert all(0 < item["last_hour"] <= item["last_day"] <= 5 for item in listed)
    expected = {"whose", "name", "failures", "unusable", "last_hour", "last_day", "wait_s", "disabled"}
    assert all(set(item) == expected for item in listed)
    assert server.ask("GET", "/v1/attempts", token=server.token("verify")).status_code == 403
    target = f"/v1/attempts/person/{device.user}"
    assert server.ask("DELETE", target, token=server.token("verify")).status_code == 403
    for _ in range(2):
        assert server.ask("DELETE", target).status_code == 204
    assert httpx.post(url, json=probe(device, right=True), headers=headers).json()["accepted"]
    metrics = server.ask("GET", "/metrics").text
    assert 'uvsdk_refused_attempts_total{until="later",whose="pair"} 46.0' in metrics
    assert server.ask("DELETE", "/v1/attempts/nobody/ab").status_code == 422
    assert server.ask("DELETE", "/v1/attempts/pair/ab").status_code == 422
    assert server.ask("DELETE", f"/v1/attempts/pair/ab:{device.user}").status_code == 204


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
        assert lines[0].split() == ["whose", "name", "failures", "unusable", "hour", "day", "next"]
        assert sorted(line.split()[0] for line in lines[1:]) == ["caller", "pair", "person"]
        assert any(device.user in line and line.endswith("disabled") for line in lines)
        assert main(["lockouts", *data, "reset", "person", device.user]) == 0
        assert main(["lockouts", *data, "reset", "person", device.user]) == 1
        assert "no failures are counted" in capsys.readouterr().err
        assert main(["lockouts", *data, "reset", "pair", device.user]) == 1
        assert "TOKEN:HASH" in capsys.readouterr().err
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
            "fmr",
            "score",
            "llr",
            "threshold",
            "model_version",
            "quality",
            "presentations",
            "basis",
        }
        assert answer.json()["threshold"]["scale"] in ("cosine", "llr")
        basis = answer.json()["basis"]
        assert (basis["source"], basis["release"]) == (shipped().calibration.source, 1)  # type: ignore[union-attr]
        assert basis["fmr"] == answer.json()["fmr"]
        assert basis["trials"] == answer.json()["threshold"]["trials"]
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
    assert [item["whose"] for item in server.ask("GET", "/v1/attempts").json()["attempts"]] == ["caller"]


def test_a_higher_rate_is_refused_and_is_no_attempt(server: RunningServer) -> None:
    device = joined(server)
    for fmr in (0.9, 0.01):
        answer = server.ask("POST", "/v1/verify", json={**probe(device, right=False), "fmr": fmr})
        assert (answer.status_code, kind(answer)) == (422, "laxer-rate")
    assert server.ask("GET", "/v1/attempts").json()["attempts"] == []
    for _ in range(3):
        assert not server.ask("POST", "/v1/verify", json=probe(device, right=False)).json()["accepted"]
    lowest = shipped().calibration.default_fmr()  # type: ignore[union-attr]
    assert server.ask("POST", "/v1/verify", json={**probe(device, right=True), "fmr": lowest}).json()["accepted"]
    listed = server.ask("GET", "/v1/attempts").json()["attempts"]
    assert [item["failures"] for item in listed] == [0] * 3
    assert all(item["last_hour"] > 2 for item in listed)


def test_ten_blank_pages_are_one_failure(server: RunningServer) -> None:
    device = joined(server)
    for _ in range(10):
        answer = server.ask("POST", "/v1/verify", json={"user": device.user, "sample": page(blank=True)})
        assert (answer.status_code, kind(answer)) == (422, "no-ink")
    listed = server.ask("GET", "/v1/attempts").json()["attempts"]
    assert {item["whose"]: (item["failures"], item["unusable"]) for item in listed} == {
        "pair": (1, 10),
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
