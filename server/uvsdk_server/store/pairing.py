"""Whether a data folder and a database are of one deployment: looked at before either is touched.

A folder holds the keys and the uploads, a database the rows that name them. A start with the wrong address (an empty
folder, a database restored empty, another deployment's) must not make new keys beside the old rows, nor take for
rubbish what only this database does not know. So each side has the deployment's id: ``deployment.json`` in the folder,
a column in the database. The file is written first and says that the first start is under way until the row is
committed; a start that was killed in between goes on.
"""

from __future__ import annotations

import json
import re
import secrets
import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from alembic.script import ScriptDirectory
from sqlalchemy import Connection, String, column, create_engine, inspect, make_url, select, table
from sqlalchemy.exc import DatabaseError, SQLAlchemyError
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from uvsdk.errors import StoreError
from uvsdk_server.keys import KeyFolder, write_key_file
from uvsdk_server.store.database import migrations
from uvsdk_server.store.schema import metadata

FILE: Final = "deployment.json"
_ID = re.compile("[0-9a-f]{32}")

State = Literal["new", "begun", "unnamed", "paired"]
"""``new``: neither side holds anything. ``begun``: a first start that was interrupted. ``unnamed``: both sides are of
one deployment and an earlier version gave it no id. ``paired``: both have the same id."""


@dataclass(frozen=True, slots=True)
class Pair:
    """What ``deployment.json`` says.

    Args:
        deployment_id: 32 hexadecimal digits.
        complete: whether the first start has come to its end.
    """

    deployment_id: str
    complete: bool

    @classmethod
    def new(cls) -> Pair:
        """A first start."""
        return cls(secrets.token_hex(16), False)

    @classmethod
    def read(cls, folder: Path) -> Pair | None:
        """Of a data folder, ``None`` where it has none. Raises :class:`StoreError` for a damaged file."""
        try:
            values = json.loads((folder / FILE).read_bytes())
            pair = cls(values["deployment_id"], values["complete"])
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise StoreError(f"{folder / FILE} cannot be read: {error.strerror}") from error
        except (ValueError, TypeError, KeyError) as error:
            raise StoreError(f"{folder / FILE} is damaged; restore it from a backup") from error
        if not (isinstance(pair.deployment_id, str) and _ID.fullmatch(pair.deployment_id)):
            raise StoreError(f"{folder / FILE} is damaged; restore it from a backup")
        return pair

    def write(self, folder: Path) -> None:
        """Durably, in one step."""
        text = json.dumps({"deployment_id": self.deployment_id, "complete": self.complete})
        write_key_file(folder / FILE, text.encode() + b"\n")


@dataclass(frozen=True, slots=True)
class Found:
    """What a look at a database finds.

    Args:
        revision: of its tables, ``None`` where there are none.
        deployment: whether a deployment lives in it.
        deployment_id: that deployment's, ``None`` where an earlier version made it.
        signing_key: the public key that devices pin, ``None`` likewise.
        algorithm_blob: file of the algorithm's state.
        hpke: ids of the HPKE keys that are not retired.
        config: the training configuration as it is stored.
    """

    revision: str | None = None
    deployment: bool = False
    deployment_id: str | None = None
    signing_key: bytes | None = None
    algorithm_blob: str = ""
    hpke: tuple[str, ...] = ()
    config: str = ""


async def look(url: str) -> Found:
    """Read what is in the database at SQLAlchemy's ``url``; nothing is made or changed. Raises :class:`StoreError`."""
    parts = make_url(url)
    try:
        if parts.get_backend_name() == "sqlite":
            path = Path(parts.database or "")
            return _look_into_file(path) if parts.database and path.is_file() and path.stat().st_size else Found()
        engine = create_async_engine(url, poolclass=NullPool, hide_parameters=True)
        try:
            async with engine.connect() as connection:
                await connection.exec_driver_sql("SET TRANSACTION READ ONLY")
                return await connection.run_sync(_found)
        finally:
            await engine.dispose()
    except (OSError, SQLAlchemyError) as error:
        if isinstance(error, DatabaseError) and "not a database" in str(error.orig):
            raise StoreError(f"{parts.database} is not a database; name the server's, or an empty place") from None
        cause = getattr(error, "orig", None) or error
        raise StoreError(f"the database cannot be read ({type(cause).__name__}); is its address right?") from error


def _look_into_file(path: Path) -> Found:
    def connect() -> sqlite3.Connection:
        # Without a log beside it the file is complete, and "immutable" keeps SQLite from making one.
        log = path.with_name(path.name + "-wal")
        lone = not (log.exists() and log.stat().st_size)
        return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro{'&immutable=1' if lone else ''}", uri=True)

    engine = create_engine("sqlite://", creator=connect, poolclass=NullPool, hide_parameters=True)
    with engine.connect() as connection:
        return _found(connection)


def _found(connection: Connection) -> Found:
    inspector = inspect(connection)
    tables = set(inspector.get_table_names())
    if "alembic_version" not in tables:
        taken = sorted(tables & set(metadata.tables))
        if taken:
            raise StoreError(
                f"the database has a table {taken[0]!r} that this server did not make; name an empty database"
            )
        return Found()
    revision = connection.execute(select(column("version_num")).select_from(table("alembic_version"))).scalar()
    known = {script.revision for script in ScriptDirectory.from_config(migrations()).walk_revisions()}
    if revision is not None and revision not in known:
        raise StoreError(
            f"the database is of revision {revision}, which this version does not know: it is of a newer uvsdk, or of "
            "another program; upgrade, or name the right database"
        )
    if "deployment" not in tables:
        return Found(revision)
    present = {item["name"] for item in inspector.get_columns("deployment")}
    names = [name for name in ("deployment_id", "signing_key", "algorithm_blob", "config") if name in present]
    row = connection.execute(select(*map(column, names)).select_from(table("deployment"))).mappings().first()
    keys = select(column("key_id", String)).select_from(table("server_keys")).where(column("retired").is_(None))
    hpke = tuple(connection.scalars(keys))
    return Found(revision, row is not None, hpke=hpke, **dict(row or {}))


def judge(folder: Path, found: Found) -> State:
    """What the two make together. Raises :class:`StoreError` where they are not of one deployment, or keys are missing.

    Reads only.
    """
    pair, keys = Pair.read(folder), KeyFolder(folder / "keys")
    holding = keys.names() or _files(folder / "blobs")
    if pair is None and not holding:
        if found.deployment:
            raise StoreError(
                f"the database holds a deployment, and {folder} has none of its keys; name the data folder that "
                "belongs to it, or an empty database. Nothing was changed"
            )
        return "new"
    if pair is not None and not pair.complete and not found.deployment:
        keys.check(hpke=found.hpke, begun=True)
        return "begun"
    if not found.deployment:
        raise StoreError(
            f"{folder} holds the keys and uploads of a deployment, and the database holds no deployment; name the "
            "database that belongs to it, or restore that from a backup. Nothing was changed"
        )
    if found.deployment_id is None:
        keys.check(hpke=found.hpke)
        keys.open_state(_state(folder, found))
        return "unnamed"
    if pair is None:
        raise StoreError(f"{folder} has keys and no {FILE}, which names their deployment; restore it from a backup")
    if pair.deployment_id != found.deployment_id:
        raise StoreError(
            f"{folder} is of the deployment {pair.deployment_id[:8]}, the database of {found.deployment_id[:8]}; name "
            "the two that belong together. Nothing was changed"
        )
    keys.check(hpke=found.hpke, signing_key=found.signing_key)
    return "paired"


def _state(folder: Path, found: Found) -> bytes:
    path = folder / "blobs" / found.algorithm_blob
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise StoreError(f"blob {path.name[:12]} is missing from {folder}; restore it from a backup") from error


def _files(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()] if folder.is_dir() else []
