"""A device and its deployment's releases: what it adopts, what it refuses, and that nobody loses a verification."""

from __future__ import annotations

import contextlib
import io
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from sklearn.datasets import load_digits

from tests.builders import image_file, open_store, run_command
from tests.integration.release_server import ReleaseServer, release_server
from uvsdk import enroll
from uvsdk.bundle import Bundle, shipped
from uvsdk.enrolment.ageing import AgeingPolicy
from uvsdk.errors import SealError, ServerUnreachableError, SettingsError, StoreError, UntrustedBundleError, WireError
from uvsdk.scoring import Calibration, Decision
from uvsdk_device import EncryptedStore, Runtime, releases
from uvsdk_device.ageing import read_history
from uvsdk_device.commands import COMMANDS, REJECTED
from uvsdk_device.models import released_path
from uvsdk_device.releases import forget_order, read_standing
from uvsdk_device.trained import note_trained

DIGITS = load_digits()
FOUNDING = shipped()


def pages(person: int) -> list[np.ndarray]:
    """What one hand wrote: five to enrol with, and more to verify."""
    return [(255 - 15 * page).astype(np.uint8) for page in DIGITS.images[DIGITS.target == person]]


GENUINE, IMPOSTOR = pages(3)[5], pages(7)[5]


def later(seed: int, *, share: float = 0.02) -> Bundle:
    """A model as a few rounds might have left it: theta a little to the side, calibrated."""
    theta = FOUNDING.theta
    noise = np.random.default_rng(seed).standard_normal(len(theta)).astype(np.float32)
    bundle = FOUNDING.with_theta(theta + np.float32(share * np.abs(theta).mean()) * noise)
    assert FOUNDING.calibration is not None
    return bundle.with_calibration(replace(FOUNDING.calibration, model_version=bundle.version))


def collapsed() -> Bundle:
    """A model to which everybody looks alike, with a calibration of before it did."""
    theta = np.zeros_like(FOUNDING.theta)
    theta[-FOUNDING.manifest.dimension :] = 1.0  # the last layer's bias is all that is left
    bundle = FOUNDING.with_theta(theta)
    assert FOUNDING.calibration is not None
    return bundle.with_calibration(replace(FOUNDING.calibration, model_version=bundle.version))


SECOND, THIRD = later(2), later(3)


@pytest.fixture
def server() -> Iterator[ReleaseServer]:
    with release_server() as running:
        yield running


@pytest.fixture
def store(tmp_path: Path) -> EncryptedStore:
    found = open_store(tmp_path / "store")
    enroll("ada", pages(3)[:5], model=FOUNDING, store=found)
    return found


@dataclass(frozen=True)
class Decided:
    """All that two decisions rest on."""

    score: float
    limit: float
    model: str
    calibration: str

    @classmethod
    def of(cls, decision: Decision) -> Decided:
        limit = decision.threshold
        return cls(decision.score, limit.score, decision.model_version, limit.calibration)


def decisions(runtime: Runtime) -> tuple[Decided, Decided]:
    """Of a genuine probe, which must be accepted, and an impostor's, which must not."""
    genuine, impostor = runtime.verify("ada", GENUINE), runtime.verify("ada", IMPOSTOR)
    assert (genuine.accepted, impostor.accepted) == (True, False)
    return Decided.of(genuine), Decided.of(impostor)


def ask(store: EncryptedStore) -> Runtime:
    return Runtime(store, retry=None)


# Adopting


def test_a_runtime_follows_releases_without_a_restart_and_back(server: ReleaseServer, store: EncryptedStore) -> None:
    named = Runtime(store, FOUNDING, retry=None)
    before = decisions(named)
    with pytest.raises(SettingsError, match="adopted no release"):
        ask(store)
    follower = server.follower(store)
    server.show(1, FOUNDING)
    report = follower.follow()
    assert report is not None
    assert (report.number, report.state) == (1, "adopted")
    assert follower.follow() is None
    runtime = ask(store)
    assert decisions(runtime) == before
    # An evaluation compares a candidate with what verifies, which is here already.
    asked = list(server.asked)
    assert follower.models.of_evaluation(FOUNDING.version).version == FOUNDING.version
    assert server.asked == asked
    server.show(2, SECOND)
    follower.follow()
    second = decisions(runtime)
    assert (second[0].model, runtime.bundle.version) == (SECOND.version, SECOND.version)
    assert runtime.verify("ada", GENUINE).basis.release == 2
    assert named.verify("ada", GENUINE).basis.release == 0  # whoever names a bundle answers for it
    assert store.template("ada").model_version == SECOND.version
    # The bundle that the deployment was founded with is used as it is named, with the template of then.
    assert decisions(named) == before == decisions(Runtime(store, FOUNDING, retry=None))
    assert store.template("ada").model_version == SECOND.version
    # A roll-back is a new number, from the disk, and the very decisions of before.
    server.show(3, FOUNDING)
    server.asked.clear()
    follower.follow()
    assert server.asked == ["GET /v1/releases/current"]
    assert decisions(runtime) == before
    server.show(4, SECOND)
    follower.follow()
    assert decisions(runtime) == second


def test_a_new_calibration_of_the_same_model_is_a_release_too(server: ReleaseServer, store: EncryptedStore) -> None:
    follower = server.follower(store)
    server.show(1, FOUNDING)
    follower.follow()
    runtime = ask(store)
    before = decisions(runtime)
    assert FOUNDING.calibration is not None
    stricter = replace(FOUNDING.calibration, impostor=FOUNDING.calibration.impostor + np.float32(0.05))
    server.show(2, FOUNDING.with_calibration(stricter))
    follower.follow()
    after = decisions(runtime)
    assert after[0].score == before[0].score
    assert after[0].limit == pytest.approx(before[0].limit + 0.05, abs=1e-6)
    server.show(3, FOUNDING)
    follower.follow()
    assert decisions(runtime) == before


def test_only_the_release_in_force_and_the_one_before_stay_on_the_disk(
    server: ReleaseServer, store: EncryptedStore
) -> None:
    follower = server.follower(store)
    for number, bundle in enumerate((FOUNDING, SECOND, THIRD), 1):
        server.show(number, bundle)
        follower.follow()
    kept = {path.name for path in (store.folder / "models").glob("*.uvb")}
    assert kept == {released_path(store, bundle.digest).name for bundle in (SECOND, THIRD)}
    # A template of the first one is still there for whoever names it.
    (first,) = (item for item in store.templates("ada") if item.model_version == FOUNDING.version)
    assert Runtime(store, FOUNDING).template("ada") == first


def test_everybody_here_moves_with_it_and_who_is_enrolled_anew_later(
    server: ReleaseServer, store: EncryptedStore
) -> None:
    enroll("ben", pages(7)[:5], model=FOUNDING, store=store)
    follower = server.follower(store)
    server.show(1, SECOND)
    follower.follow()
    assert {store.template(user).model_version for user in store.users()} == {SECOND.version}
    runtime = ask(store)
    assert runtime.verify("ben", pages(7)[6]).accepted
    assert not runtime.verify("ada", pages(7)[6]).accepted
    assert runtime.identify(pages(7)[6], runtime.gallery()).user_id == "ben"
    enroll("ada", pages(0)[:5], model=FOUNDING, store=store)
    assert [item.model_version for item in store.templates("ada")] == [FOUNDING.version]  # of nothing that is gone
    assert runtime.verify("ada", pages(0)[6]).accepted
    assert store.template("ada").model_version == SECOND.version


def test_steps_of_ageing_wait_for_a_roll_back(server: ReleaseServer, store: EncryptedStore) -> None:
    follower = server.follower(store)
    server.show(1, FOUNDING)
    follower.follow()
    policy = AgeingPolicy(interval_s=0.0, require_live=False, minimum_cosine=0.9, stricter=1.0)
    runtime = Runtime(store, retry=None, ageing=policy)
    for page in pages(3)[6:12]:
        runtime.verify("ada", page)
    history = read_history(store, "ada")
    assert history is not None
    assert history.steps > 0
    moved = ask(store).verify("ada", GENUINE).score, runtime.verify("ada", IMPOSTOR).score
    server.show(2, SECOND)
    follower.follow()
    assert read_history(store, "ada") is None
    runtime.verify("ada", IMPOSTOR)
    server.show(3, FOUNDING)
    follower.follow()
    again = read_history(store, "ada")
    assert again is not None
    assert again.steps == history.steps
    assert np.array_equal(again.current, history.current)
    assert (ask(store).verify("ada", GENUINE).score, runtime.verify("ada", IMPOSTOR).score) == moved


def test_commands_need_no_model_once_a_release_was_adopted(
    server: ReleaseServer, store: EncryptedStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UVSDK_PASSPHRASE", "p")
    commands = {command.name: command for command in COMMANDS}
    files = {name: tmp_path / f"{name}.png" for name in ("genuine", "impostor", *map(str, range(5)))}
    for name, path in files.items():
        made = {"genuine": GENUINE, "impostor": IMPOSTOR}.get(name)
        path.write_bytes(image_file(pages(7)[int(name)] if made is None else made))
    FOUNDING.save(tmp_path / "founding.uvb")

    def run(command: str, *words: object) -> tuple[int, str]:
        with contextlib.redirect_stdout(io.StringIO()) as said:
            status = run_command(commands[command], *map(str, words), "--store", str(store.folder))
        return status, said.getvalue()

    with pytest.raises(SettingsError, match="adopted no release"):
        run("verify", "ada", files["genuine"])
    follower = server.follower(store)
    server.show(1, FOUNDING)
    follower.follow()
    server.show(2, SECOND)
    follower.follow()
    server.show(3, collapsed())
    follower.follow()
    assert run("enroll", "ben", *(files[str(place)] for place in range(5)))[0] == 0
    assert store.template("ben").model_version == SECOND.version
    for named in ((), ("--model", tmp_path / "founding.uvb")):  # the line of the README goes on being true
        assert run("verify", "ada", files["genuine"], *named)[0] == 0
        assert run("verify", "ada", files["impostor"], *named)[0] == REJECTED
        status, said = run("identify", files["impostor"], *named)
        assert (status, said.splitlines()[0]) == (0, "identified: ben")
    _, said = run("store", "--releases")
    lines = said.splitlines()
    assert lines[0] == f"releases release 2 verifies here: model {SECOND.version[:12]}, handwriting"
    assert lines[1] == f"releases release 1 is kept to go back to: model {FOUNDING.version[:12]}, handwriting"
    assert lines[2].startswith("releases release 3 was refused: ")
    # What a deployment has shown is forgotten with the server, at the owner's word.
    server.show(1, FOUNDING)
    with pytest.raises(SealError):
        follower.follow()
    forget_order(store, follower.deployment.identity)
    assert follower.follow() is not None
    assert run("verify", "ada", files["genuine"])[0] == 0


# Refusing


@pytest.mark.parametrize("people", [1, 2])
def test_a_collapsed_model_is_refused_here_and_counted_there(
    server: ReleaseServer, store: EncryptedStore, people: int
) -> None:
    if people == 2:
        enroll("ben", pages(7)[:5], model=FOUNDING, store=store)
    follower = server.follower(store)
    server.show(1, FOUNDING)
    follower.follow()
    runtime = ask(store)
    before, template = decisions(runtime), store.template("ada")
    server.show(2, collapsed())
    report = follower.follow()
    assert report is not None
    assert report.state == "refused"
    assert "accepted as the owner" in report.detail
    assert (decisions(runtime), store.template("ada")) == (before, template)
    (refusal,) = read_standing(store, "handwriting").followed[0].refusals
    assert (refusal.number, refusal.reason, refusal.told) == (2, report.detail, True)
    assert server.refusals == [2]
    # Once is enough, until somebody asks for it.
    assert follower.follow() is None
    again = follower.follow(again=True)
    assert again is not None
    assert again.state == "refused"
    assert server.refusals == [2]
    server.show(3, SECOND)
    follower.follow()
    assert decisions(runtime)[0].model == SECOND.version


def test_a_refusal_is_told_when_the_server_can_be_reached(
    server: ReleaseServer, store: EncryptedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    follower = server.follower(store)
    server.show(1, collapsed())

    def unreachable(*_: object, **__: object) -> None:
        raise ServerUnreachableError("the network is gone")

    with monkeypatch.context() as patch:
        patch.setattr(type(follower.connection), "post", unreachable)
        follower.follow()
    assert server.refusals == []
    follower.follow()
    assert server.refusals == [1]


def test_a_model_that_verifies_nobody_takes_the_place_of_nothing(server: ReleaseServer, store: EncryptedStore) -> None:
    follower = server.follower(store)
    server.show(1, FOUNDING)
    follower.follow()
    server.show(2, SECOND.with_calibration(None))
    report = follower.follow()
    assert report is not None
    assert "no calibration" in report.detail
    assert FOUNDING.calibration is not None
    everybody = Calibration(np.linspace(-0.2, 0.999, 20000, dtype=np.float32), SECOND.version, "too strict")
    server.show(3, SECOND.with_calibration(everybody))
    report = follower.follow()
    assert report is not None
    assert "of the owner's own samples" in report.detail
    decisions(ask(store))


def test_a_rate_that_was_named_and_is_not_supported_keeps_a_device_where_it_is(
    server: ReleaseServer, store: EncryptedStore
) -> None:
    enroll("ada", pages(3)[:5], model=FOUNDING, store=store, fmr=0.0002)
    follower = server.follower(store)
    server.show(1, FOUNDING)
    follower.follow()
    assert SECOND.calibration is not None
    few = replace(SECOND.calibration, impostor=SECOND.calibration.impostor[::40])
    server.show(2, SECOND.with_calibration(few))
    report = follower.follow()
    assert report is not None
    assert report.state == "refused"
    assert "needs at least 15000 impostor trials" in report.detail
    server.show(3, SECOND)
    follower.follow()
    limit = ask(store).template("ada").threshold
    assert limit is not None
    assert (limit.fmr, limit.by_default) == (0.0002, False)


def test_without_a_network_everybody_is_verified_as_before(store: EncryptedStore) -> None:
    with release_server() as server:
        follower = server.follower(store)
        server.show(1, FOUNDING)
        follower.follow()
        server.show(2, SECOND)
        server.bundles[2] = server.bundles[2][:1000]  # the download breaks off
        before = decisions(ask(store))
        with pytest.raises(WireError):
            follower.follow()
        assert decisions(ask(store)) == before
    alone = server.follower(store)
    with alone.connection, pytest.raises(ServerUnreachableError):
        alone.follow()
    assert decisions(ask(store)) == before


def test_a_process_that_was_overtaken_changes_nothing(
    server: ReleaseServer, store: EncryptedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, fast = server.follower(store), server.follower(store)
    server.show(1, FOUNDING)
    slow.follow()
    tried = releases.objection

    def overtaken(*given: Any, **named: Any) -> str:
        monkeypatch.setattr(releases, "objection", tried)
        server.show(3, THIRD)
        fast.follow()
        return tried(*given, **named)

    server.show(2, SECOND)
    monkeypatch.setattr(releases, "objection", overtaken)
    assert slow.follow() is None
    assert decisions(ask(store))[0].model == THIRD.version
    assert [signed.release.number for signed in read_standing(store, "handwriting").adopted] == [3, 1]


# Whom a device believes


def test_nothing_that_is_not_what_it_says_is_adopted(server: ReleaseServer, store: EncryptedStore) -> None:
    follower = server.follower(store)
    server.show(5, FOUNDING)
    follower.follow()
    before = decisions(ask(store))
    refused: list[tuple[Callable[[], object], type[Exception], str]] = [
        (lambda: server.show(6, SECOND, by=Ed25519PrivateKey.generate()), SealError, "not signed by the server"),
        (lambda: server.show(4, SECOND), SealError, "replays an old answer"),
        (lambda: server.show(5, SECOND), SealError, "two different releases 5"),
        (lambda: server.show(6, SECOND, served=SECOND.to_bytes()), UntrustedBundleError, "sign"),
        (
            lambda: server.show(6, SECOND, served=FOUNDING.sign(server.key).to_bytes()),
            WireError,
            "release 6 is the bundle",
        ),
        (lambda: server.show(6, SECOND, served=b"no bundle"), WireError, "cannot be used"),
    ]
    for show, error, words in refused:
        show()
        with pytest.raises(error, match=words):
            follower.follow()
        assert decisions(ask(store)) == before
    server.bundles[6] = SECOND.sign(server.key).to_bytes()
    server.show(6, SECOND)
    assert follower.follow() is not None


def test_a_bundle_that_was_altered_on_the_disk_verifies_nobody_and_comes_back(
    server: ReleaseServer, store: EncryptedStore
) -> None:
    follower = server.follower(store)
    server.show(1, FOUNDING)
    follower.follow()
    before = decisions(ask(store))
    path = released_path(store, FOUNDING.digest)
    path.write_bytes(collapsed().to_bytes())
    with pytest.raises(StoreError, match="bundle of release 1"):
        ask(store)
    path.unlink()
    with pytest.raises(StoreError, match="bundle of release 1"):
        ask(store)
    follower.follow()
    assert decisions(ask(store)) == before


def test_a_bundle_is_read_again_only_where_its_file_has_changed(
    server: ReleaseServer, store: EncryptedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    follower = server.follower(store)
    server.show(1, FOUNDING)
    follower.follow()
    first = follower.bundle()
    assert first is not None
    opened: list[Path] = []
    really_open = Bundle.open

    def counted(path: Path, **options: Any) -> Bundle:
        opened.append(path)
        return really_open(path, **options)

    monkeypatch.setattr(Bundle, "open", counted)
    assert follower.follow() is None
    assert follower.bundle() is first
    assert not opened
    path = released_path(store, FOUNDING.digest)
    path.write_bytes(collapsed().to_bytes())
    with pytest.raises(StoreError, match="bundle of release 1"):
        follower.bundle()
    follower.follow()
    restored = follower.bundle()
    assert restored is not None
    assert (restored.digest, restored is first) == (FOUNDING.digest, False)


def test_samples_that_trained_raise_no_threshold_after_a_release(server: ReleaseServer, tmp_path: Path) -> None:
    store = open_store(tmp_path / "twenty")
    enroll("ada", pages(3)[:25], model=FOUNDING, store=store)
    before = store.template("ada")
    follower = server.follower(store)
    server.show(1, FOUNDING)
    follower.follow()
    assert store.template("ada") == before
    note_trained(store, "ada", store.features("ada"), model_version=FOUNDING.version)
    server.show(2, SECOND)
    follower.follow()
    assert SECOND.calibration is not None
    own = store.template("ada").threshold
    assert own is not None
    assert own.score == SECOND.calibration.threshold(own.fmr).score
    server.show(3, FOUNDING)
    follower.follow()
    assert ask(store).template("ada") == before


# kill -9


def _killed(work: Callable[[], object], after: int) -> bool:
    """Run ``work`` in a child that is killed before its write number ``after``; whether it came that far."""
    child = os.fork()
    if child == 0:
        left = [after]
        replace_file, unlink = Path.replace, Path.unlink

        def count() -> None:
            left[0] -= 1
            if left[0] < 0:
                os.kill(os.getpid(), signal.SIGKILL)

        def counted_replace(self: Path, target: Path) -> Path:
            count()
            return replace_file(self, target)

        def counted_unlink(self: Path, missing_ok: bool = False) -> None:
            count()
            unlink(self, missing_ok)

        Path.replace, Path.unlink = counted_replace, counted_unlink  # type: ignore[method-assign, assignment]
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return os.WIFSIGNALED(status)


@pytest.mark.parametrize("back", [False, True], ids=["release", "roll-back"])
def test_killed_between_any_two_writes_a_device_verifies_by_the_one_release_or_the_other(
    server: ReleaseServer, tmp_path: Path, back: bool
) -> None:
    folder = tmp_path / "store"
    store = open_store(folder)
    enroll("ada", pages(3)[:5], model=FOUNDING, store=store)
    follower = server.follower(store)
    server.show(1, FOUNDING)
    follower.follow()
    founding = decisions(ask(store))
    if back:
        server.show(2, SECOND)
        follower.follow()
    former = decisions(ask(store))
    server.show(3, FOUNDING if back else SECOND)
    seen = []
    for after in range(100):
        killed = _killed(lambda: server.follower(open_store(folder)).follow(), after)
        reopened = open_store(folder)
        found = decisions(ask(reopened))
        seen.append(found)
        assert decisions(Runtime(reopened, FOUNDING, retry=None)) == founding
        if not killed:
            break
    assert seen[0] == former != seen[-1]
    assert seen == sorted(seen, key=lambda found: found != former)  # once switched, it stays so
    assert (seen[-1] == founding) is back
    assert not list(folder.glob("**/*.tmp"))
    expected = {released_path(store, bundle.digest).name for bundle in (FOUNDING, SECOND)}
    assert {path.name for path in (folder / "models").iterdir()} == expected
