"""``uvsdk audit``: who administered what, to read, to take along and to check."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from sqlalchemy.ext.asyncio import AsyncConnection

from uvsdk.errors import SettingsError, StoreError
from uvsdk.federation.messages import TrainingConfig
from uvsdk_server.audit_log import SignedHead, covers, exported, verify_export
from uvsdk_server.beside import in_database, print_table, settings_of
from uvsdk_server.keys import KeyFolder
from uvsdk_server.store import audit, ledger
from uvsdk_server.store.audit import Entry

_MOST = 1 << 31


def configure(parser: argparse.ArgumentParser) -> None:
    """Its arguments."""
    parser.add_argument("--data", type=Path, help="the server's data folder; not for verify with a file")
    actions = parser.add_subparsers(dest="action", required=True, metavar="list|verify|export")
    listing = actions.add_parser("list", help="the newest entries, oldest first")
    listing.add_argument("--limit", type=int, default=20, help="how many (20)")
    listing.add_argument("--before", type=int, metavar="NUMBER", help="only those older than this one")
    listing.add_argument("--user", metavar="HASH", help="only those about this hashed user id")
    listing.add_argument("--of", choices=audit.ACTIONS, metavar="ACTION", help="only what was done so")
    verify = actions.add_parser(
        "verify",
        help="check that no entry was changed or removed",
        description="Follow the chain of digests from the first entry to the last, of the server's log or of an "
        "export. That the last entries were not cut off shows only against a head that was kept elsewhere (--kept).",
    )
    verify.add_argument("file", type=Path, nargs="?", metavar="FILE", help="an export; left out: the server's own log")
    verify.add_argument("--kept", type=Path, metavar="EARLIER", help="an earlier export, which the log must go on from")
    export = actions.add_parser("export", help="write every entry and the signed head to a file, a line of JSON each")
    export.add_argument("file", type=Path, metavar="FILE", help="a new file")


def run(arguments: argparse.Namespace) -> int:
    """Do it, and print what is found."""
    if arguments.action == "list":
        _list(arguments)
    elif arguments.action == "export":
        _export(arguments)
    else:
        _verify(arguments)
    return 0


def _list(arguments: argparse.Namespace) -> None:
    if not 1 <= arguments.limit < _MOST or not 1 <= (arguments.before or 1) < _MOST:
        raise SettingsError(f"--limit and --before are numbers from 1 to {_MOST - 1}")
    subject = None
    if arguments.user is not None:
        subject = KeyFolder(settings_of(data=arguments.data).data / "keys").mark(arguments.user)
        if not subject:
            raise SettingsError("nobody of that id is here: of whoever has left, the log tells nobody")

    async def found(connection: AsyncConnection) -> list[Entry]:
        return await audit.listed(
            connection,
            before=arguments.before,
            limit=arguments.limit,
            subject=subject,
            action=arguments.of,
            newest=True,
        )

    rows = [
        (
            str(entry.number),
            time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(entry.at_ms / 1000)),
            entry.actor,
            entry.action,
            entry.subject[:12] or "-",
            " ".join(f"{name}={_short(value)}" for name, value in sorted(entry.detail.items())),
        )
        for entry in in_database(arguments.data, found)
    ]
    print_table([("number", "when", "by", "action", "person", "detail"), *rows])


def _short(value: str | int | None) -> str:
    return "-" if value in (None, "") else str(value)[:32]


def _export(arguments: argparse.Namespace) -> None:
    entries, signed = _whole(arguments.data)
    audit.verify_chain(entries)
    try:
        with arguments.file.open("x", encoding="ascii") as file:
            file.write(exported(entries, signed))
    except FileExistsError as error:
        raise SettingsError(f"{arguments.file} exists; give a file that does not") from error
    except OSError as error:
        raise SettingsError(f"cannot write {arguments.file}: {error.strerror}") from error
    print(f"{len(entries)} entries, up to digest {signed.head.digest}")


def _verify(arguments: argparse.Namespace) -> None:
    if arguments.file is None:
        entries, signed = _whole(arguments.data)
        audit.verify_chain(entries)
    else:
        entries, signed = verify_export(_text(arguments.file))
    if arguments.kept is not None:
        _, kept = verify_export(_text(arguments.kept))
        if (kept.deployment, kept.key) != (signed.deployment, signed.key):
            raise StoreError(f"{arguments.kept} is the log of another deployment, or was signed by another key")
        covers(entries, kept)
    print(f"{len(entries)} entries of {signed.deployment}, none changed or removed, up to digest {signed.head.digest}")


def _whole(data: Path | None) -> tuple[list[Entry], SignedHead]:
    files = KeyFolder(settings_of(data=data).data / "keys")

    async def read(connection: AsyncConnection) -> tuple[list[Entry], SignedHead]:
        row = await ledger.deployment_row(connection)
        assert row is not None  # the folder is a server's
        entries, head = await audit.listed(connection), await audit.head(connection)
        return entries, SignedHead.of(TrainingConfig.from_json(row.config).deployment, head, files.signing)

    return in_database(data, read)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii")
    except OSError as error:
        raise SettingsError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise StoreError(f"{path} is no export of an audit log") from error
