"""``uvsdk serve``, ``uvsdk token``, ``uvsdk rounds`` and ``uvsdk lockouts``."""

from __future__ import annotations

import argparse
import asyncio
import math
import socket
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import uvicorn
from fastapi import FastAPI
from pydantic import ValidationError
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from uvsdk.attempts import wait_s
from uvsdk.cli import Command
from uvsdk.errors import SettingsError
from uvsdk_server import tokens
from uvsdk_server.app import create_app
from uvsdk_server.connections import Patience, room
from uvsdk_server.deployment import Deployment, check_pair, open_database
from uvsdk_server.settings import Settings
from uvsdk_server.store import counts, ledger, schema

Answer = TypeVar("Answer")

_GRACE_S = 20


class Server(uvicorn.Server):
    """uvicorn, which says where it listens and lets those who wait for a round go when it is told to stop.

    Args:
        app: made by :func:`uvsdk_server.create_app`.
        host: address to listen on.
        port: port to listen on, 0 for any.
        announce: print the address, and on the first start an operator's token.
    """

    def __init__(self, app: FastAPI, *, host: str, port: int, announce: bool = True) -> None:
        settings: Settings = app.state.settings
        patience = Patience(
            headers_s=settings.headers_timeout_s,
            bytes_per_s=settings.slowest_bytes_per_s,
            connections=settings.connections or room(),
        )
        super().__init__(
            uvicorn.Config(
                app,
                host=host,
                port=port,
                log_level="warning",
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=_GRACE_S,
                http=patience.protocol(),
                ws="none",
            )
        )
        self._app = app
        self._announce = announce

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, and say where."""
        await super().startup(sockets)
        if self.should_exit or not self._announce:
            return
        host, port = self.servers[0].sockets[0].getsockname()[:2]
        print(f"listening on http://{host}:{port}", flush=True)
        token = await first_operator_token(self._app.state.deployment)
        if token is not None:
            print(f"operator token (shown once): {token}", flush=True)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Release long polls first: uvicorn waits for every open request."""
        served: Deployment | None = getattr(self._app.state, "deployment", None)
        if served is not None:
            await served.rounds.board.release()
        await super().shutdown(sockets)


async def first_operator_token(served: Deployment) -> str | None:
    """A new operator's token where there has never been one."""
    async with served.database.write() as connection:
        made = (await connection.execute(select(schema.tokens.c.scopes))).scalars()
        if any("operator" in tokens.read(scopes) for scopes in made):
            return None
        return await tokens.create(connection, ["operator"], label="first start", now=time.time())


def _settings(**values: Any) -> Settings:
    try:
        return Settings(**{name: value for name, value in values.items() if value is not None})
    except ValidationError as error:
        problems = [f"{'.'.join(str(part) for part in item['loc'])}: {item['msg']}" for item in error.errors()]
        raise SettingsError("; ".join(problems)) from error


def _configure_serve(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", type=Path, help="folder of database, blobs and keys")
    parser.add_argument("--model", type=Path, help="bundle to start from; needed on the first start")
    parser.add_argument("--publisher", type=Path, metavar="KEY", help="public key that must have signed the bundle")
    parser.add_argument("--training", type=Path, help="training configuration, .json or .toml")
    parser.add_argument("--host", help="address to listen on (127.0.0.1)")
    parser.add_argument("--port", type=int, help="port to listen on (8080), 0 for any")
    parser.add_argument("--start-after", type=int, metavar="N", help="users admitted before the first round (3)")
    parser.add_argument(
        "--allow", action="append", metavar="ALGORITHM", help="accept this algorithm's restricted settings"
    )
    parser.add_argument(
        "--authority",
        action="append",
        metavar="HOST[:PORT]",
        help="name by which devices call this server, behind a proxy or by DNS; several times for several",
    )
    parser.epilog = "Every other setting is an environment variable UVSDK_SERVER_*, see uvsdk_server.Settings."


def _serve(arguments: argparse.Namespace) -> int:
    settings = _settings(
        data=arguments.data,
        model=arguments.model,
        publisher=arguments.publisher,
        training=arguments.training,
        host=arguments.host,
        port=arguments.port,
        start_after_users=arguments.start_after,
        allow_restricted=None if arguments.allow is None else tuple(arguments.allow),
        authorities=None if arguments.authority is None else tuple(arguments.authority),
    )
    server = Server(create_app(settings), host=settings.host, port=settings.port)
    server.run()
    return 0 if server.started else 1


def _configure_token(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", type=Path, help="the server's data folder")
    actions = parser.add_subparsers(dest="action", required=True, metavar="create|list|revoke")
    create = actions.add_parser("create", help="make a token and print it once")
    create.add_argument(
        "--scope",
        dest="scopes",
        action="append",
        choices=tokens.SCOPES,
        required=True,
        help="what it may do; several times for several: scores and embeddings only beside verify",
    )
    create.add_argument("--label", default="", help="what it is for")
    create.add_argument("--days", type=float, help="days until it expires; never if left out")
    create.add_argument("--uses", type=int, help="devices that may register with an enrolment token")
    actions.add_parser("list", help="list tokens, without their secrets")
    revoke = actions.add_parser("revoke", help="make a token worthless")
    revoke.add_argument("id", help="as listed")


def _token(arguments: argparse.Namespace) -> int:
    async def create(connection: AsyncConnection) -> str:
        lifetime_s = None if arguments.days is None else arguments.days * 86_400
        return await tokens.create(
            connection,
            arguments.scopes,
            label=arguments.label,
            now=time.time(),
            lifetime_s=lifetime_s,
            max_uses=arguments.uses,
        )

    async def revoke(connection: AsyncConnection) -> bool:
        return await tokens.revoke(connection, arguments.id)

    if arguments.action == "create":
        print(_in_database(arguments.data, create))
    elif arguments.action == "revoke":
        if not _in_database(arguments.data, revoke):
            raise SettingsError(f"there is no token {arguments.id}; see `uvsdk token list`")
    else:
        header = ("id", "scopes", "uses", "expires", "state", "label")
        _print_table([header, *_in_database(arguments.data, _token_rows)])
    return 0


async def _token_rows(connection: AsyncConnection) -> list[tuple[str, ...]]:
    found = (await connection.execute(select(schema.tokens).order_by(schema.tokens.c.created))).all()
    return [
        (
            row.token_id,
            row.scopes,
            f"{row.uses}/{row.max_uses}" if row.max_uses is not None else str(row.uses),
            _date(row.expires),
            "revoked" if row.revoked else "expired" if row.expires and row.expires <= time.time() else "valid",
            row.label,
        )
        for row in found
    ]


def _configure_rounds(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", type=Path, help="the server's data folder")
    actions = parser.add_subparsers(dest="action", required=True, metavar="list")
    listing = actions.add_parser("list", help="the newest rounds")
    listing.add_argument("--limit", type=int, default=20, help="how many (20)")
    listing.add_argument("--before", type=int, metavar="ROUND", help="only rounds older than this one")


def _rounds(arguments: argparse.Namespace) -> int:
    if arguments.limit < 1:
        raise SettingsError(f"--limit is {arguments.limit}; list at least one round")

    async def listed(connection: AsyncConnection) -> list[tuple[str, ...]]:
        return [
            (
                str(row.round_id),
                row.state,
                str(row.cohort),
                str(row.accepted),
                str(row.quorum),
                _date(row.opened),
                (row.result_version or "-")[:12],
                row.reason or "",
            )
            for row in await ledger.list_rounds(connection, arguments.limit, arguments.before)
        ]

    header = ("round", "state", "cohort", "accepted", "quorum", "opened", "model", "reason")
    _print_table([header, *_in_database(arguments.data, listed)])
    return 0


def _configure_lockouts(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", type=Path, help="the server's data folder")
    actions = parser.add_subparsers(dest="action", required=True, metavar="list|reset")
    listing = actions.add_parser("list", help="who has failed, most failures in a row first")
    listing.add_argument("--limit", type=int, default=50, help="how many (50)")
    reset = actions.add_parser(
        "reset", help="forget the failures at a person (by every caller), of a caller's token, or of one at the other"
    )
    reset.add_argument("whose", choices=counts.WHOSE)
    reset.add_argument("name", help="hashed user id, token id, or both as TOKEN:HASH, as listed")


def _lockouts(arguments: argparse.Namespace) -> int:
    if arguments.action == "reset":
        try:
            subject = counts.Subject.named(arguments.whose, arguments.name)
        except ValueError as error:
            raise SettingsError(str(error)) from error

        async def reset(connection: AsyncConnection) -> bool:
            return await counts.reset(connection, subject)

        if not _in_database(arguments.data, reset):
            raise SettingsError(f"no failures are counted for that {arguments.whose}; see `uvsdk lockouts list`")
        return 0
    if arguments.limit < 1:
        raise SettingsError(f"--limit is {arguments.limit}; list at least one")
    policies, now = _settings(data=arguments.data).retry_policies(), time.time()

    async def listed(connection: AsyncConnection) -> list[tuple[str, ...]]:
        rows: list[tuple[str, ...]] = []
        for subject, state in await counts.listed(connection, arguments.limit):
            policy = policies[subject.whose]
            remaining_s, recent = wait_s(state, policy, now), state.recent.at(policy, now)
            then = "disabled" if math.isinf(remaining_s) else f"waits {math.ceil(remaining_s)} s"
            lately = (f"{recent.hour:.1f}", f"{recent.day:.1f}")
            rows.append((subject.whose, subject.name, str(state.failures), str(state.unusable), *lately, then))
        return rows

    header = ("whose", "name", "failures", "unusable", "hour", "day", "next")
    _print_table([header, *_in_database(arguments.data, listed)])
    return 0


def _in_database(data: Path | None, work: Callable[[AsyncConnection], Awaitable[Answer]]) -> Answer:
    settings = _settings(data=data)

    async def run() -> Answer:
        await check_pair(settings)
        database = open_database(settings)
        try:
            async with database.write() as connection:
                return await work(connection)
        finally:
            await database.close()

    return asyncio.run(run())


def _print_table(rows: Sequence[tuple[str, ...]]) -> None:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _date(unix_s: float | None) -> str:
    return "-" if unix_s is None else time.strftime("%Y-%m-%d %H:%M", time.localtime(unix_s))


COMMANDS = (
    Command("serve", "Run the coordination server.", _configure_serve, _serve),
    Command("token", "Make, list and revoke the server's tokens.", _configure_token, _token),
    Command("rounds", "List the server's training rounds.", _configure_rounds, _rounds),
    Command("lockouts", "Show and reset failed attempts.", _configure_lockouts, _lockouts),
)
