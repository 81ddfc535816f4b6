"""``uvsdk serve --check``: what a start would find and do, without one; reads only."""

from __future__ import annotations

import fcntl
import os
from dataclasses import fields

from uvsdk.errors import SettingsError
from uvsdk.federation.messages import TrainingConfig
from uvsdk.system import network
from uvsdk_server.deployment import Founding, check_change, database_url, read_training
from uvsdk_server.monitoring import Log
from uvsdk_server.settings import Settings
from uvsdk_server.store.database import newest_revision
from uvsdk_server.store.pairing import Found, judge, look
from uvsdk_server.training import check_restricted


async def report(settings: Settings, log: Log) -> list[tuple[str, str]]:
    """What would be served, a line each: name and words.

    Raises:
        SettingsError, StoreError, BundleError, WireError: what would keep a server from starting.
    """
    found = await look(database_url(settings))
    state = judge(settings.data, found)
    rows = [("data", f"{settings.data}: {_words(found, new=state in ('new', 'begun'))}")]
    if state in ("new", "begun"):
        founding = Founding.read(settings, log)
        manifest = founding.bundle.manifest
        rows.append(("model", f"{settings.model}: {manifest.backbone} for {manifest.modality}, train {manifest.train}"))
        rows.append(("model version", founding.bundle.version))
        config = founding.config
    else:
        stored = TrainingConfig.from_json(found.config)
        config = stored if settings.training is None else read_training(settings.training)
        check_change(stored, config)
        check_restricted(config, settings.allow_restricted)
        rows += [("changes", change) for change in _changes(stored, config)]
    rows += [
        ("deployment", config.deployment),
        ("training", f"{config.algorithm}, {config.rounds} rounds, configuration {config.digest()[:12]}"),
        ("listens", _listens(settings)),
        ("called by", ", ".join(settings.authorities) or "its own address, from this machine"),
        ("releases", f"{settings.release_policy}, calibrations of {settings.calibration_policy}"),
    ]
    return rows


def _words(found: Found, *, new: bool) -> str:
    if new:
        return "nothing there yet, a start makes a deployment"
    newest = newest_revision()
    if found.revision == newest:
        return f"a deployment, tables of revision {newest}"
    return f"a deployment, tables of revision {found.revision}, which a start brings to {newest}"


def _changes(stored: TrainingConfig, config: TrainingConfig) -> list[str]:
    """What of the training configuration is another from now on."""
    pairs = ((field.name, getattr(stored, field.name), getattr(config, field.name)) for field in fields(stored))
    found = [f"{name} {former!r} -> {now!r}" for name, former, now in pairs if former != now]
    return [*found, "a round in progress is aborted"] if found else []


def _listens(settings: Settings) -> str:
    address = f"http://{settings.host}:{settings.port or 'any port'}"
    if _is_running(settings):
        return f"{address}; a server of this data folder is running"
    with network.listener(settings.host, settings.port):
        return address


def _is_running(settings: Settings) -> bool:
    """Whether a server holds the data folder's lock; where there is none yet, none is made."""
    try:
        descriptor = os.open(settings.data / "lock", os.O_RDONLY)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise SettingsError(f"{settings.data} cannot be read: {error.strerror}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
