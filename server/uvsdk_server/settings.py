"""The server's settings: arguments of :class:`Settings`, or environment variables ``UVSDK_SERVER_*``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from uvsdk.errors import SettingsError
from uvsdk.modality import Capture, FacesRule, Limits
from uvsdk.release.record import CalibrationPolicy, Policy
from uvsdk.scoring import QualityPolicy
from uvsdk.system.network import is_loopback
from uvsdk.templates.attempts import DAY_S, RetryPolicy
from uvsdk_server import authorities
from uvsdk_server.store.counts import Whose


class Settings(BaseSettings):
    """Everything an operator can set that devices need not approve; those settings are ``TrainingConfig``.

    Attributes:
        data: folder of the database, the blobs and the keys; made with mode 0700.
        model: bundle file to start from; read on the first start only.
        publisher: public key (PEM) that must have signed ``model``; none is asked for where it is not set.
        training: training configuration, ``.json`` or ``.toml``; required on the first start.
        database_url: SQLAlchemy URL with an asynchronous driver; empty for SQLite inside ``data``.
        host: address to listen on; anything but this machine only with ``allow_plain_http``.
        allow_plain_http: whether ``host`` may be reached from other machines, over HTTP that nobody encrypts here:
            behind a proxy that speaks TLS, or in a network that encrypts.
        port: port to listen on, 0 for any free one.
        base_path: where a proxy that strips no prefix has put the server, e.g. ``/uv`` for ``https://host/uv/v1/...``.
        start_after_users: users that must be admitted before the first round, and the first evaluation.
        round_pause_s: seconds between the end of a round and the next.
        calibration_policy: ``operator``: a calibration that an operator gave the model that verifies stands until that
            model changes; ``evaluations``: the next evaluation that supports one replaces it, as it does any other.
        role_seed: draws who only evaluates, and who is summed with whom, under this number in place of the server's
            secret: for a demonstration that is to come out the same again. Whoever knows it and hashed ids knows roles;
            roles that were drawn stay.
        keep_models: committed model versions that stay downloadable, beside those that are released.
        release_policy: what makes a new release: ``automatic`` (a candidate that the gate lets pass), ``manual`` (an
            operator) or ``frozen`` (nothing but a roll-back); ``uvsdk serve --release-policy``.
        keep_releases: newest releases that one can roll back to. Older ones are kept within the grace while somebody's
            template is of them.
        template_grace_s: how long after a release a person is still verified by the template, the model and the
            calibration of the one before, where their device has not handed over a newer one.
        keep_rounds: closed rounds whose receipts (digest and norm of each upload) are kept.
        key_lifetime_s: age at which the server's HPKE key is replaced; SPEC 11.3 asks for 24 h.
        key_rounds: rounds after which it is replaced; SPEC 11.3 asks for 100.
        quarantine_days: days that keys and blobs are kept which no row of the database names, e.g. because an older
            copy of it was restored.
        upload_limit_bytes: largest update; 0 for what this model needs and 1 MiB more.
        body_limit_bytes: largest body of every other request.
        concurrent_uploads: updates received at once, one of each device; more are answered 429, unless one of them
            is slower than ``slowest_bytes_per_s`` and gives way.
        headers_timeout_s: a connection is closed that has not sent a whole request's headers by then.
        stall_timeout_s: longest pause within a body.
        slowest_bytes_per_s: slowest body of a request, and slowest reader of an answer.
        request_timeout_s: longest time the server works on an answer; an update has no such limit.
        connections: most connections at once; the oldest that has never sent a request makes room. 0 for what the
            limit of open files (``ulimit -n``) leaves.
        absent_after: share of a round's time after which a round that has its quorum does not stay open for members
            that have not fetched their task; and for which an evaluation that too few have answered stays open where
            nobody comes and nobody is at work.
        devices_per_user: active devices that one user may have. As many that nobody has approved yet are known beside
            them.
        registrations_per_minute: devices that may register in a minute with a valid token; more are answered 429.
        wrong_tokens_per_minute: registrations with a token that is not valid that are answered 401; more are answered
            429. They take nothing from those whose token is valid.
        signature_window_s: age at which the challenge that devices sign their requests over is replaced; the one
            before it is still accepted, and each request once.
        statement_lifetime_s: how long devices believe what the server signed in the open (its keys, a round) after it
            said so; their clocks may differ by five minutes besides.
        authorities: names by which devices call this server, ``host`` or ``host:port``; ``uvsdk serve --authority
            NAME``. What devices sign is for one of them, whatever Host header a proxy passes on. Empty for a server
            that is called by its own address (``host``) or from this machine. In the environment, names with commas
            between them.
        default_fmr: the deployment's false match rate: a request may ask for a lower one only. Left out, it is the
            strictest that the current model's impostor trials measure (between 0.01 % and 1 %, see
            :meth:`uvsdk.scoring.Calibration.default_fmr`). A person who was enrolled at a lower rate is verified at
            that one, as on their own device.
        quality: quality policy of ``POST /v1/verify``: ``off``, ``standard`` or ``strict``; a request may only ask for
            a stricter one.
        faces: whose face is meant where a picture has several: ``largest``, ``single`` or ``only``
            (:class:`uvsdk.modality.Capture`); a request may only ask for a stricter rule.
        embedding_probes: take embeddings in place of samples from tokens with the scope ``embeddings``. They pass by
            quality and presentation checks, and a stolen template is such an embedding.
        presentation_detector: ask the presentation attack detector that the model carries, where it carries one.
        strict_domain: refuse what lies outside of what the calibration was measured on, in place of asking more of it.
        failures_before_delay: failed attempts in a row for one person by one caller's token after which the next must
            wait (NIST SP 800-63B: at most 5, 10 with presentation attack detection that was shown to work).
        failures_before_disabled: after which verification of that person by that caller is disabled until the operator
            resets it (NIST: at most 50, 100 with detection).
        retry_delay_s: the first delay; each further failure doubles it (NIST: at least 30 s).
        retry_longest_delay_s: where it stops growing.
        pair_failures_per_hour: failed attempts for one person by one caller in an hour's window, whatever is accepted
            in between; a caller who is told scores fills it with every answer (:mod:`uvsdk.templates.attempts`).
        pair_failures_per_day: the same in a day's.
        person_failures_per_hour: failed attempts for one person by all callers together; they slow callers through whom
            that person was not accepted lately, and no others.
        person_failures_per_day: the same in a day's.
        caller_failures_per_hour: failed attempts by one caller, whoever is claimed, whatever is accepted in between.
            Raise it for a token that serves so many people that they fail more often honestly.
        caller_failures_per_day: the same in a day's.
        known_days: how long an acceptance makes a caller known for a person.
        verify_threads: verifications computed at once.
        pixels_limit: largest image of ``POST /v1/verify``.
        seconds_limit: longest recording of ``POST /v1/verify``.
        metrics_public: whether ``GET /metrics`` needs no operator token.
        allow_restricted: algorithms whose restricted settings the operator accepts; ``uvsdk serve --allow NAME``. In
            the environment, names with commas between them.
        log_level: least severe level that is logged: ``debug``, ``info``, ``warning`` or ``error``.
    """

    model_config = SettingsConfigDict(
        env_prefix="UVSDK_SERVER_", frozen=True, allow_inf_nan=False, extra="forbid", protected_namespaces=()
    )

    data: Path
    model: Path | None = None
    publisher: Path | None = None
    training: Path | None = None
    database_url: str = ""
    host: str = "127.0.0.1"
    allow_plain_http: bool = False
    port: int = Field(default=8080, ge=0, le=65535)
    base_path: str = Field(default="", pattern=r"^(/[A-Za-z0-9._~-]+)*$")
    start_after_users: int = Field(default=3, ge=1)
    round_pause_s: float = Field(default=0.0, ge=0)
    role_seed: int | None = None
    keep_models: int = Field(default=5, ge=1)
    release_policy: Policy = "automatic"
    calibration_policy: CalibrationPolicy = "operator"
    keep_releases: int = Field(default=5, ge=2)
    template_grace_s: float = Field(default=30 * DAY_S, ge=0)
    keep_rounds: int = Field(default=20, ge=1)
    key_lifetime_s: float = Field(default=86_400.0, gt=0)
    key_rounds: int = Field(default=100, ge=1)
    quarantine_days: float = Field(default=30.0, gt=0)
    upload_limit_bytes: int = Field(default=0, ge=0)
    body_limit_bytes: int = Field(default=8 << 20, ge=1024)
    concurrent_uploads: int = Field(default=16, ge=1)
    headers_timeout_s: float = Field(default=10.0, gt=0)
    stall_timeout_s: float = Field(default=10.0, gt=0)
    slowest_bytes_per_s: float = Field(default=8192.0, gt=0)
    request_timeout_s: float = Field(default=300.0, gt=0)
    connections: int = Field(default=0, ge=0)
    absent_after: float = Field(default=0.25, gt=0, le=1)
    devices_per_user: int = Field(default=5, ge=1)
    registrations_per_minute: int = Field(default=600, ge=1)
    wrong_tokens_per_minute: int = Field(default=60, ge=1)
    signature_window_s: float = Field(default=300.0, gt=0)
    statement_lifetime_s: float = Field(default=3600.0, gt=0)
    authorities: Annotated[tuple[str, ...], NoDecode] = Field(default=(), max_length=authorities.LIMIT)
    default_fmr: float | None = Field(default=None, gt=0, lt=1)
    quality: QualityPolicy = "standard"
    faces: FacesRule = "single"
    embedding_probes: bool = False
    presentation_detector: bool = True
    strict_domain: bool = False
    failures_before_delay: int = Field(default=5, ge=1)
    failures_before_disabled: int = Field(default=50, ge=1)
    retry_delay_s: float = Field(default=30.0, ge=0)
    retry_longest_delay_s: float = Field(default=3600.0, ge=0)
    pair_failures_per_hour: int = Field(default=20, ge=1)
    pair_failures_per_day: int = Field(default=50, ge=1)
    person_failures_per_hour: int = Field(default=10, ge=1)
    person_failures_per_day: int = Field(default=50, ge=1)
    caller_failures_per_hour: int = Field(default=60, ge=1)
    caller_failures_per_day: int = Field(default=300, ge=1)
    known_days: float = Field(default=90.0, ge=0, le=36_500)
    verify_threads: int = Field(default=2, ge=1)
    pixels_limit: int = Field(default=25_000_000, ge=1)
    seconds_limit: float = Field(default=60.0, gt=0)
    metrics_public: bool = False
    allow_restricted: Annotated[tuple[str, ...], NoDecode] = ()
    log_level: str = Field(default="info", pattern="^(debug|info|warning|error)$")

    @model_validator(mode="after")
    def _encrypted(self) -> Self:
        if not self.allow_plain_http and not is_loopback(self.host.strip("[]")):
            raise ValueError(
                f"host {self.host!r} can be reached from other machines and the server speaks plain HTTP; listen on "
                "127.0.0.1 behind a proxy that speaks TLS, or allow it by name (allow_plain_http, --allow-plain-http)"
            )
        return self

    @field_validator("authorities")
    @classmethod
    def _authorities(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        try:
            return tuple(authorities.normalise(name) for name in value)
        except SettingsError as error:
            raise ValueError(str(error)) from error

    @field_validator("allow_restricted", "authorities", mode="before")
    @classmethod
    def _names(cls, value: object) -> object:
        return tuple(name.strip() for name in value.split(",") if name.strip()) if isinstance(value, str) else value

    def capture(self) -> Capture:
        """How the probes of ``POST /v1/verify`` are taken where the request asks for nothing stricter."""
        limits = Limits(max_pixels=self.pixels_limit, max_seconds=self.seconds_limit)
        return Capture(quality=self.quality, faces=self.faces, limits=limits)

    def retry_policies(self) -> dict[Whose, RetryPolicy]:
        """What failures cost a pair of caller and person, a person and a caller. Raises :class:`SettingsError`."""
        return {
            "pair": RetryPolicy(
                self.failures_before_delay,
                self.retry_delay_s,
                self.retry_longest_delay_s,
                self.failures_before_disabled,
                per_hour=self.pair_failures_per_hour,
                per_day=self.pair_failures_per_day,
                known_s=self.known_days * DAY_S,
            ),
            "person": RetryPolicy.windows(per_hour=self.person_failures_per_hour, per_day=self.person_failures_per_day),
            "caller": RetryPolicy.windows(per_hour=self.caller_failures_per_hour, per_day=self.caller_failures_per_day),
        }
