"""``uvsdk serve``, ``token``, ``devices``, ``rounds``, ``releases``, ``cohort``, ``audit`` and ``lockouts``."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import math
import os
import secrets
import socket
from collections.abc import Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import uvicorn
from fastapi import FastAPI
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from uvsdk.cli import Command
from uvsdk.errors import SettingsError, StoreError
from uvsdk.federation.messages import TrainingConfig
from uvsdk.privacy.identifiers import hash_user_id
from uvsdk.release.record import POLICIES
from uvsdk.rest.problems import Problem
from uvsdk.system import network
from uvsdk.templates.attempts import wait_s
from uvsdk_server import audit_commands as audit_log
from uvsdk_server import checking, monitoring, tokens
from uvsdk_server import cohort_commands as cohort
from uvsdk_server import release_commands as releases
from uvsdk_server.app import create_app
from uvsdk_server.beside import date, in_database, print_table, settings_of, storage_errors
from uvsdk_server.clocks import wall_clock
from uvsdk_server.connections import Patience, room
from uvsdk_server.deployment import Deployment
from uvsdk_server.keys import KeyFolder
from uvsdk_server.people import approve, revoke
from uvsdk_server.settings import Settings
from uvsdk_server.store import audit, counts, ledger, roster, schema

OPERATOR_TOKEN = "operator-token"  # noqa: S105 - the name of a file
"""File in the data folder that holds the operator's token of the first start."""

_GRACE_S = 20
_MOST = 1 << 31


class Server(uvicorn.Server):
    """uvicorn, which says where it listens and lets those who wait for a round go when it is told to stop.

    Args:
        app: made by :func:`uvsdk_server.create_app`.
        host: address to listen on.
        port: port to listen on, 0 for any.
        announce: print the address, and on the first start where the operator's token was written.
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
                lifespan="off",  # it is entered below, so that what keeps it from opening is raised, not logged
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
        self._opened = AsyncExitStack()

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until told to stop.

        Raises:
            SettingsError: the address cannot be listened on; nothing was opened.
            UvsdkError, OSError, SQLAlchemyError: what keeps the deployment from opening.
        """
        if sockets is not None:
            super().run(sockets)
            return
        with network.listener(self.config.host, self.config.port) as listener:
            super().run([listener])

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, and say where."""
        await self._opened.enter_async_context(self._app.router.lifespan_context(self._app))
        await super().startup(sockets)
        if not self.started:
            await self._opened.aclose()
        if self.should_exit or not self._announce:
            return
        host, port = self.servers[0].sockets[0].getsockname()[:2]
        print(f"listening on http://{host}:{port}", flush=True)
        path = await first_operator_token(self._app.state.deployment)
        if path is not None:
            print(f"operator token, valid for 90 days, written to {path}", flush=True)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Release long polls first: uvicorn waits for every open request."""
        served: Deployment | None = getattr(self._app.state, "deployment", None)
        if served is not None:
            await served.rounds.board.release()
        await super().shutdown(sockets)
        await self._opened.aclose()


async def first_operator_token(served: Deployment) -> Path | None:
    """The file of a new operator's token, mode 0600, where there has never been one."""
    path = served.settings.data / OPERATOR_TOKEN
    async with served.database.write() as connection:
        made = (await connection.execute(select(schema.tokens.c.scopes))).scalars()
        if any("operator" in tokens.read_scopes(scopes) for scopes in made):
            return None
        text = await tokens.create(connection, ["operator"], label="first start", now=wall_clock(), by=audit.SERVER)
        # Before the row is durable: a crash in between leaves a file without a token, and the next start writes both.
        await asyncio.to_thread(_write_secret, path, text, replace=True)
    return path


def _write_secret(path: Path, text: str, *, replace: bool = False) -> None:
    """Write a line that only this account may read. Raises :class:`SettingsError`."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with open(descriptor, "w") as file:  # noqa: PTH123 - a descriptor that was opened with mode 0600
                file.write(text + "\n")
                file.flush()
                os.fsync(file.fileno())
            if replace:
                draft.replace(path)
            else:
                path.hardlink_to(draft)  # which never replaces a file
        finally:
            draft.unlink(missing_ok=True)
    except FileExistsError as error:
        raise SettingsError(f"{path} exists; give a file that does not") from error
    except OSError as error:
        raise SettingsError(f"cannot write {path}: {error.strerror}") from error


def _configure_serve(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", type=Path, help="folder of database, blobs and keys")
    parser.add_argument("--model", type=Path, help="bundle to start from; needed on the first start")
    parser.add_argument("--publisher", type=Path, metavar="KEY", help="public key that must have signed the bundle")
    parser.add_argument("--training", type=Path, help="training configuration, .json or .toml")
    parser.add_argument("--host", help="address to listen on (127.0.0.1)")
    parser.add_argument(
        "--allow-plain-http",
        action="store_const",
        const=True,
        help="let --host be reached from other machines: behind a proxy that speaks TLS, or where the network encrypts",
    )
    parser.add_argument("--port", type=int, help="port to listen on (8080), 0 for any")
    parser.add_argument(
        "--release-policy",
        choices=POLICIES,
        help="who releases a candidate: the gate and the operator (automatic), the operator, or nobody (frozen)",
    )
    parser.add_argument(
        "--calibration-policy",
        choices=("operator", "evaluations"),
        help="whether an operator's calibration of what verifies stands (operator), or evaluations replace it",
    )
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
    parser.add_argument("--check", action="store_true", help="say what a start would find and do, and do nothing")
    parser.epilog = "Every other setting is an environment variable UVSDK_SERVER_*, see uvsdk_server.Settings."


def _serve(arguments: argparse.Namespace) -> int:
    settings = settings_of(
        data=arguments.data,
        model=arguments.model,
        publisher=arguments.publisher,
        training=arguments.training,
        host=arguments.host,
        allow_plain_http=arguments.allow_plain_http,
        port=arguments.port,
        start_after_users=arguments.start_after,
        release_policy=arguments.release_policy,
        calibration_policy=arguments.calibration_policy,
        allow_restricted=None if arguments.allow is None else tuple(arguments.allow),
        authorities=None if arguments.authority is None else tuple(arguments.authority),
    )
    if arguments.check:
        with storage_errors():
            print_table(asyncio.run(checking.report(settings, monitoring.logger("error"))))
        return 0
    server = Server(create_app(settings), host=settings.host, port=settings.port)
    with storage_errors(), contextlib.suppress(KeyboardInterrupt):  # Ctrl-C is how it is stopped
        server.run()
    return 0 if server.started else 1


def _configure_token(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", type=Path, help="the server's data folder")
    actions = parser.add_subparsers(dest="action", required=True, metavar="create|list|rotate|users|revoke")
    create = actions.add_parser(
        "create",
        help="make a token and print it once",
        description="Make a token and print it once. An operator's is never printed: it is written to a file of mode "
        "0600, whose path is printed.",
    )
    create.add_argument(
        "--scope",
        dest="scopes",
        action="append",
        choices=tokens.SCOPES,
        required=True,
        help="what it may do; several times for several: scores and embeddings only beside verify",
    )
    create.add_argument("--label", default="", help="what it is for")
    create.add_argument(
        "--days", type=float, help="days until it expires (operator: 90, enrol: 30, others: never if left out)"
    )
    create.add_argument("--output", type=Path, metavar="FILE", help="write it to this new file, mode 0600")
    create.add_argument("--uses", type=int, help="devices that may register with an enrolment token (1)")
    create.add_argument(
        "--user",
        dest="users",
        action="append",
        metavar="USER",
        help="whose devices may register with an enrolment token: a hashed user id, or with --pepper-file an id in "
        "clear; several times for as many tokens, printed in that order",
    )
    create.add_argument("--pepper-file", type=Path, help="file of the deployment's secret, to hash --user with")
    create.add_argument(
        "--unbound",
        action="store_true",
        help="an enrolment token for anybody, --uses of them: whoever has it may claim to be any person. Their devices "
        "train, but the server verifies nobody by them before `uvsdk devices approve`",
    )
    create.add_argument(
        "--only",
        action="store_true",
        help="a verifying token for some people alone: for nobody before `uvsdk token users ID --add USER`",
    )
    actions.add_parser("list", help="list tokens, without their secrets")
    rotate = actions.add_parser(
        "rotate",
        help="give a token a new secret and print it once; the secret so far is taken for a day more",
        description="Give a token a new secret. It keeps its id, its scopes, its people and what was counted of it, "
        "and lives anew for as long as it was made for.",
    )
    rotate.add_argument("id", help="as listed")
    rotate.add_argument("--hours", type=float, default=24.0, help="for how long the secret so far is still taken (24)")
    rotate.add_argument("--output", type=Path, metavar="FILE", help="write it to this new file, mode 0600")
    users = actions.add_parser("users", help="whom a token that was made with --only verifies")
    users.add_argument("id", help="as listed")
    users.add_argument(
        "--add", action="append", default=[], metavar="USER", help="hashed id; several times for several"
    )
    users.add_argument("--remove", action="append", default=[], metavar="USER", help="as --add")
    revoke = actions.add_parser("revoke", help="make a token worthless")
    revoke.add_argument("id", help="as listed")


def _token(arguments: argparse.Namespace) -> int:
    async def create(connection: AsyncConnection) -> list[str]:
        lifetime_s = None if arguments.days is None else arguments.days * tokens.DAY_S
        return [
            await tokens.create(
                connection,
                arguments.scopes,
                label=arguments.label,
                now=wall_clock(),
                by=audit.COMMAND,
                lifetime_s=lifetime_s,
                max_uses=arguments.uses,
                user=user,
                unbound=arguments.unbound,
                limited=arguments.only,
            )
            for user in await _hashed(connection, arguments.users, arguments.pepper_file)
        ]

    async def revoke(connection: AsyncConnection) -> bool:
        return await tokens.revoke(connection, arguments.id, now=wall_clock(), by=audit.COMMAND)

    async def rotate(connection: AsyncConnection) -> str:
        grace_s = arguments.hours * 3600.0
        text = await tokens.rotate(connection, arguments.id, now=wall_clock(), by=audit.COMMAND, grace_s=grace_s)
        token = await tokens.of_id(connection, arguments.id)
        assert token is not None  # it has just been changed
        if arguments.output is None and "operator" not in tokens.read_scopes(token.scopes):
            return text
        default = settings_of(data=arguments.data).data / f"{OPERATOR_TOKEN}-{arguments.id}-{secrets.token_hex(3)}"
        path = arguments.output or default
        # Before the new secret is durable: whoever cannot write it keeps the one they have.
        await asyncio.to_thread(_write_secret, path, text)
        return str(path)

    async def users(connection: AsyncConnection) -> list[str]:
        mark = KeyFolder(settings_of(data=arguments.data).data / "keys").mark
        changes = [*((user, True) for user in arguments.add), *((user, False) for user in arguments.remove)]
        for user, verify in changes:
            await tokens.let(connection, arguments.id, user, mark, verify=verify, now=wall_clock(), by=audit.COMMAND)
        return await tokens.served_by(connection, arguments.id)

    if arguments.action == "create":
        _hand_out(arguments, in_database(arguments.data, create))
    elif arguments.action == "rotate":
        print(in_database(arguments.data, rotate))
    elif arguments.action == "users":
        print("\n".join(in_database(arguments.data, users)) or "nobody")
    elif arguments.action == "revoke":
        if not in_database(arguments.data, revoke):
            raise SettingsError(f"there is no token {arguments.id}; see `uvsdk token list`")
    else:
        header = ("id", "scopes", "user", "uses", "expires", "state", "label")
        print_table([header, *in_database(arguments.data, _token_rows)])
    return 0


async def _hashed(
    connection: AsyncConnection, users: Sequence[str] | None, pepper_file: Path | None
) -> Sequence[str | None]:
    """The hashed ids a token each is made for; one ``None`` where none is named."""
    if pepper_file is None or not users:
        return users or [None]
    row = await ledger.deployment_row(connection)
    if row is None:
        raise StoreError("the server has not been started yet; its first start says which deployment ids belong to")
    try:
        pepper = pepper_file.read_bytes()
    except OSError as error:
        raise SettingsError(f"cannot read {pepper_file}: {error.strerror}") from error
    deployment = TrainingConfig.from_json(row.config).deployment
    return [hash_user_id(user, deployment=deployment, pepper=pepper) for user in users]


def _hand_out(arguments: argparse.Namespace, made: Sequence[str]) -> None:
    """Print new tokens, or where they were written; an operator's is in no terminal and no shell's history."""
    if "operator" not in arguments.scopes and arguments.output is None:
        print("\n".join(made))
        return
    token_id = made[0].split("_")[1]
    path = arguments.output or settings_of(data=arguments.data).data / f"{OPERATOR_TOKEN}-{token_id}"
    try:
        _write_secret(path, "\n".join(made))
    except SettingsError:
        for text in made:  # nobody has seen it, so nobody shall ever use it
            unseen = text.split("_")[1]
            in_database(arguments.data, partial(tokens.revoke, token_id=unseen, now=wall_clock(), by=audit.COMMAND))
        raise
    print(path)


async def _token_rows(connection: AsyncConnection) -> list[tuple[str, ...]]:
    return [
        (
            row.token_id,
            row.scopes,
            _whom(row),
            f"{row.uses}/{row.max_uses}" if row.max_uses is not None else str(row.uses),
            date(row.expires),
            row.state(wall_clock()),
            row.label,
        )
        for row in await tokens.list_tokens(connection)
    ]


def _whom(token: tokens.Token) -> str:
    """For whom a token is, where that is not everybody."""
    if "enrol" in tokens.read_scopes(token.scopes):
        return (token.user or "anybody")[:12]
    return "some" if token.limited else "-"


def _configure_rounds(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", type=Path, help="the server's data folder")
    actions = parser.add_subparsers(dest="action", required=True, metavar="list")
    listing = actions.add_parser("list", help="the newest rounds")
    listing.add_argument("--limit", type=int, default=20, help="how many (20)")
    listing.add_argument("--before", type=int, metavar="ROUND", help="only rounds older than this one")


def _rounds(arguments: argparse.Namespace) -> int:
    if not 1 <= arguments.limit < _MOST or not 1 <= (arguments.before or 1) < _MOST:
        raise SettingsError(f"--limit and --before are numbers from 1 to {_MOST - 1}")

    async def listed(connection: AsyncConnection) -> list[tuple[str, ...]]:
        return [
            (
                str(row.round_id),
                row.state,
                str(row.cohort),
                str(row.accepted),
                str(row.quorum),
                date(row.opened),
                (row.result_version or "-")[:12],
                row.reason or "",
            )
            for row in await ledger.list_rounds(connection, arguments.limit, arguments.before)
        ]

    header = ("round", "state", "cohort", "accepted", "quorum", "opened", "model", "reason")
    print_table([header, *in_database(arguments.data, listed)])
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
            subject = counts.Subject.parse(arguments.whose, arguments.name)
        except ValueError as error:
            raise SettingsError(str(error)) from error
        files = KeyFolder(settings_of(data=arguments.data).data / "keys")

        async def reset(connection: AsyncConnection) -> bool:
            return await counts.reset(connection, subject, files.mark, now=wall_clock(), by=audit.COMMAND)

        if not in_database(arguments.data, reset):
            raise SettingsError(f"no failures are counted for that {arguments.whose}; see `uvsdk lockouts list`")
        return 0
    if not 1 <= arguments.limit < _MOST:
        raise SettingsError(f"--limit is a number from 1 to {_MOST - 1}")
    policies, now = settings_of(data=arguments.data).retry_policies(), wall_clock()

    async def listed(connection: AsyncConnection) -> list[tuple[str, ...]]:
        rows: list[tuple[str, ...]] = []
        for subject, state in await counts.list_counts(connection, arguments.limit):
            policy = policies[subject.whose]
            remaining_s, recent = wait_s(state, policy, now), state.recent.at(policy, now)
            then = "disabled" if math.isinf(remaining_s) else f"waits {math.ceil(remaining_s)} s"
            lately = (f"{recent.hour:.1f}", f"{recent.day:.1f}")
            rows.append((subject.whose, subject.name, str(state.failures), str(state.unusable), *lately, then))
        return rows

    header = ("whose", "name", "failures", "unusable", "hour", "day", "next")
    print_table([header, *in_database(arguments.data, listed)])
    return 0


def _configure_devices(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", type=Path, help="the server's data folder")
    actions = parser.add_subparsers(dest="action", required=True, metavar="list|approve|revoke")
    listing = actions.add_parser("list", help="devices, and what each may do")
    listing.add_argument("--state", choices=roster.STATES, help="only those in this state")
    listing.add_argument("--user", metavar="HASH", help="only those of this hashed user id")
    approve = actions.add_parser(
        "approve",
        help="let devices that wait, or that nobody has vouched for, act for their users",
        description="Let devices act for their users: make sure in another way whose they are. A device shows its id "
        "with `uvsdk device show`.",
    )
    approve.add_argument("ids", nargs="+", metavar="ID", help="as listed")
    revoke = actions.add_parser("revoke", help="take a lost device's rights for good; its user and template stay")
    revoke.add_argument("ids", nargs="+", metavar="ID", help="as listed")


def _devices(arguments: argparse.Namespace) -> int:
    async def listed(connection: AsyncConnection) -> list[tuple[str, ...]]:
        found = await roster.list_devices(connection, user=arguments.user, state=arguments.state)
        return [(row.device_id, row.state, row.user, date(row.created)) for row in found]

    async def change(connection: AsyncConnection) -> None:
        settings = settings_of(data=arguments.data)
        limit, files = settings.devices_per_user, KeyFolder(settings.data / "keys")
        for device_id in arguments.ids:
            row = await roster.of_id(connection, device_id)
            if row is None:
                raise SettingsError(f"there is no device {device_id}; see `uvsdk devices list`")
            if arguments.action == "approve":
                await approve(connection, row, limit, files, now=wall_clock(), by=audit.COMMAND)
            else:
                await revoke(connection, row, files, now=wall_clock(), by=audit.COMMAND)

    if arguments.action == "list":
        print_table([("device", "state", "user", "since"), *in_database(arguments.data, listed)])
        return 0
    try:
        in_database(arguments.data, change)
    except Problem as problem:
        raise SettingsError(problem.detail) from problem
    return 0


COMMANDS = (
    Command("serve", "Run the coordination server.", _configure_serve, _serve),
    Command("token", "Make, list and revoke the server's tokens.", _configure_token, _token),
    Command("devices", "List, approve and revoke the devices of a server's users.", _configure_devices, _devices),
    Command("rounds", "List the server's training rounds.", _configure_rounds, _rounds),
    Command("releases", "Show what verifies, promote a candidate, roll back.", releases.configure, releases.run),
    Command("cohort", "Hand a server strangers to calibrate on.", cohort.configure, cohort.run),
    Command("audit", "Show, check and export who administered what.", audit_log.configure, audit_log.run),
    Command("lockouts", "Show and reset failed attempts.", _configure_lockouts, _lockouts),
)
