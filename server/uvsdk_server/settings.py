"""The server's settings: arguments of :class:`Settings`, or environment variables ``UVSDK_SERVER_*``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict


class Settings(BaseSettings):
    """Everything an operator can set that devices need not approve; those settings are ``TrainingConfig``.

    Attributes:
        data: folder of the database, the blobs and the keys; made with mode 0700.
        model: bundle file to start from; read on the first start only.
        training: training configuration, ``.json`` or ``.toml``; required on the first start.
        database_url: SQLAlchemy URL with an asynchronous driver; empty for SQLite inside ``data``.
        host: address to listen on.
        port: port to listen on, 0 for any free one.
        start_after_users: users that must be admitted before the first round opens.
        round_pause_s: seconds between the end of a round and the next.
        keep_models: committed model versions that stay downloadable.
        keep_rounds: closed rounds whose receipts (digest and norm of each upload) are kept.
        key_lifetime_s: age at which the server's HPKE key is replaced; SPEC 11.3 asks for 24 h.
        key_rounds: rounds after which it is replaced; SPEC 11.3 asks for 100.
        upload_limit_bytes: largest update; 0 for what this model needs and 1 MiB more.
        body_limit_bytes: largest body of every other request.
        concurrent_uploads: updates received at once; more are answered 429.
        devices_per_user: devices that may stand for one user; a further one could replace the user's template.
        registrations_per_minute: devices that may register in a minute; more are answered 429.
        signature_window_s: how far a device's clock may differ.
        default_fmr: false match rate of ``POST /v1/verify`` where the request names none.
        verify_threads: verifications computed at once.
        pixels_limit: largest image of ``POST /v1/verify``.
        seconds_limit: longest recording of ``POST /v1/verify``.
        metrics_public: whether ``GET /metrics`` needs no operator token.
        allow_restricted: algorithms whose restricted settings the operator accepts; ``uvsdk serve --allow NAME``. In
            the environment, names with commas between them.
        log_level: least severe level that is logged: ``debug``, ``info``, ``warning`` or ``error``.
    """

    model_config = SettingsConfigDict(env_prefix="UVSDK_SERVER_", frozen=True, extra="forbid", protected_namespaces=())

    data: Path
    model: Path | None = None
    training: Path | None = None
    database_url: str = ""
    host: str = "127.0.0.1"
    port: int = Field(default=8080, ge=0, le=65535)
    start_after_users: int = Field(default=3, ge=1)
    round_pause_s: float = Field(default=0.0, ge=0)
    keep_models: int = Field(default=5, ge=1)
    keep_rounds: int = Field(default=20, ge=1)
    key_lifetime_s: float = Field(default=86_400.0, gt=0)
    key_rounds: int = Field(default=100, ge=1)
    upload_limit_bytes: int = Field(default=0, ge=0)
    body_limit_bytes: int = Field(default=8 << 20, ge=1024)
    concurrent_uploads: int = Field(default=16, ge=1)
    devices_per_user: int = Field(default=1, ge=1)
    registrations_per_minute: int = Field(default=600, ge=1)
    signature_window_s: float = Field(default=300.0, gt=0)
    default_fmr: float = Field(default=0.01, gt=0, lt=1)
    verify_threads: int = Field(default=2, ge=1)
    pixels_limit: int = Field(default=25_000_000, ge=1)
    seconds_limit: float = Field(default=60.0, gt=0)
    metrics_public: bool = False
    allow_restricted: Annotated[tuple[str, ...], NoDecode] = ()
    log_level: str = Field(default="info", pattern="^(debug|info|warning|error)$")

    @field_validator("allow_restricted", mode="before")
    @classmethod
    def _names(cls, value: object) -> object:
        return tuple(name.strip() for name in value.split(",") if name.strip()) if isinstance(value, str) else value
