"""Tokens over their life: for some people alone, a new secret in place of the former, and what an operator sees."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.integration import harness
from tests.integration.harness import RunningServer, SyntheticDevice, kind
from tests.integration.test_server_attempts import joined, probe
from uvsdk.cli import main


def made(data: list[str], capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["token", *data, *arguments]) == 0
    return capsys.readouterr().out.strip()


def verified(server: RunningServer, token: str, device: SyntheticDevice) -> str:
    answer = server.ask("POST", "/v1/verify", token=token, json=probe(device, right=True))
    return "accepted" if answer.status_code == 200 and answer.json()["accepted"] else kind(answer)


def test_a_token_for_some_people_verifies_nobody_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with harness.serving(tmp_path, settings={"start_after_users": 1000, "embedding_probes": True}) as server:
        device = joined(server)
        data = ["--data", str(server.data)]
        scopes = ("--scope", "verify", "--scope", "embeddings")
        token = made(data, capsys, "create", *scopes, "--only")
        name = token.split("_")[1]
        assert made(data, capsys, "users", name) == "nobody"
        assert verified(server, token, device) == "forbidden"
        stranger = SyntheticDevice(server, 99)
        # Whether somebody is here is not told either.
        assert verified(server, token, stranger) == "forbidden"
        assert made(data, capsys, "users", name, "--add", device.user) == device.user
        assert verified(server, token, device) == "accepted"
        assert verified(server, token, stranger) == "forbidden"
        assert server.ask("GET", f"/v1/tokens/{name}/users").json() == {"users": [device.user]}
        listed = {item["token_id"]: item for item in server.ask("GET", "/v1/tokens").json()["tokens"]}
        assert (listed[name]["limited"], listed[name]["state"]) == (True, "valid")
        pages, after = [], ""
        while after is not None:
            answer = server.ask("GET", f"/v1/tokens?limit=1&after={after}").json()
            pages += [item["token_id"] for item in answer["tokens"]]
            after = answer["next_after"]
        assert pages == sorted(listed)
        assert server.ask("DELETE", f"/v1/tokens/{name}/users/{device.user}").status_code == 204
        assert server.ask("DELETE", f"/v1/tokens/{name}/users/{device.user}").status_code == 204
        assert verified(server, token, device) == "forbidden"
        # Named before they register, as an application does.
        assert server.ask("PUT", f"/v1/tokens/{name}/users/{stranger.user}").status_code == 204
        assert verified(server, token, stranger) == "unknown-user"
        told = [item["action"] for item in server.ask("GET", "/v1/audit?limit=500").json()["entries"]]
        assert (told.count("token-user-added"), told.count("token-user-removed")) == (2, 1)
        # Who leaves is in no token's list.
        assert server.ask("PUT", f"/v1/tokens/{name}/users/{device.user}").status_code == 204
        assert device.request("DELETE", f"/v1/users/{device.user}").status_code == 204
        assert server.ask("GET", f"/v1/tokens/{name}/users").json() == {"users": [stranger.user]}


def test_what_is_no_token_for_some_people(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with harness.serving(tmp_path, settings={"start_after_users": 1000}) as server:
        data = ["--data", str(server.data)]
        everybody = made(data, capsys, "create", "--scope", "verify").split("_")[1]
        for name in (everybody, "0" * 12):
            assert kind(server.ask("PUT", f"/v1/tokens/{name}/users/{'a' * 64}")) == "unknown-token"
            assert kind(server.ask("GET", f"/v1/tokens/{name}/users")) == "unknown-token"
        assert server.ask("PUT", f"/v1/tokens/{everybody}/users/ab").status_code == 422
        assert server.ask("GET", "/v1/tokens?limit=0").status_code == 422
        for wrong, match in [
            (["create", "--scope", "operator", "--only"], "for some people"),
            (["create", "--scope", "audit", "--only"], "for some people"),
            (["users", everybody, "--add", "a" * 64], "verifies everybody"),
            (["users", "0" * 12, "--add", "a" * 64], "no token"),
            (["users", everybody, "--add", "ada"], "64 hexadecimal"),
            (["rotate", "0" * 12], "no token"),
            (["rotate", everybody, "--hours", "-1"], "0 s to 30 days"),
            (["rotate", everybody, "--hours", "nan"], "0 s to 30 days"),
        ]:
            assert main(["token", *data, *wrong]) == 1, wrong
            assert match in capsys.readouterr().err


def test_a_new_secret_in_place_of_the_former(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with harness.serving(tmp_path, settings={"start_after_users": 1000, "embedding_probes": True}) as server:
        device = joined(server)
        data = ["--data", str(server.data)]
        scopes = ("--scope", "verify", "--scope", "embeddings")
        first = made(data, capsys, "create", *scopes, "--only", "--days", "2")
        name = first.split("_")[1]
        made(data, capsys, "users", name, "--add", device.user)
        server.change("UPDATE tokens SET created = created - 86400, expires = expires - 86400")
        second = made(data, capsys, "rotate", name)
        assert second != first
        assert second.split("_")[1] == name
        # Both hold, scopes and people stay, and it lives anew.
        assert [verified(server, token, device) for token in (first, second)] == ["accepted", "accepted"]
        ((expires,),) = server.rows(f"SELECT expires FROM tokens WHERE token_id = '{name}'")
        assert abs(expires - time.time() - 2 * 86_400) < 60
        # A third takes the first one's grace: the one before is the one that is still taken.
        third = made(data, capsys, "rotate", name)
        assert [verified(server, token, device) for token in (first, second, third)] == [
            "unauthorized",
            "accepted",
            "accepted",
        ]
        server.change("UPDATE tokens SET former_until = ?", time.time() - 1)
        assert [verified(server, token, device) for token in (second, third)] == ["unauthorized", "accepted"]
        fourth = made(data, capsys, "rotate", name, "--hours", "0")
        assert [verified(server, token, device) for token in (third, fourth)] == ["unauthorized", "accepted"]
        made(data, capsys, "revoke", name)
        assert verified(server, fourth, device) == "unauthorized"
        assert main(["token", *data, "rotate", name]) == 1
        assert "no token" in capsys.readouterr().err


def test_an_operators_new_secret_is_written_and_never_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with harness.serving(tmp_path / "server", settings={"start_after_users": 1000}) as server:
        data = ["--data", str(server.data)]
        name = server.operator.split("_")[1]
        path = Path(made(data, capsys, "rotate", name))
        assert path.stat().st_mode & 0o777 == 0o600
        assert server.ask("GET", "/v1/rounds", token=path.read_text().strip()).status_code == 200
        taken = tmp_path / "taken"
        taken.write_text("")
        assert main(["token", *data, "rotate", name, "--output", str(taken)]) == 1
        capsys.readouterr()
        # Nothing was changed, for nobody would have the new one.
        assert server.ask("GET", "/v1/rounds", token=path.read_text().strip()).status_code == 200
        assert server.ask("GET", "/v1/rounds").status_code == 200  # the first one, within its day
