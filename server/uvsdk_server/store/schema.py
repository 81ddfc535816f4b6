"""The tables. Portable between SQLite and PostgreSQL: times are Unix seconds, seeds are decimal text.

Nothing here is a biometric in clear: columns named ``*_sealed`` are encrypted with a key file of
:class:`uvsdk_server.keys.KeyFolder`, and columns named ``*_blob`` name files of
:class:`uvsdk_server.store.blobs.Blobs`. ``removals`` names files of the data folder that are to be removed
(:mod:`uvsdk_server.store.removals`).
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    false,
    true,
)

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)

deployment = Table(
    "deployment",
    metadata,
    Column("id", Integer, CheckConstraint("id = 1", name="single"), primary_key=True, autoincrement=False),
    Column("config", Text, nullable=False),
    Column("seed", String(80), nullable=False),
    Column("model_version", String(64), nullable=False),
    Column("base_blob", String(64), nullable=False),
    Column("algorithm_blob", String(64), nullable=False),
    Column("optimiser_blob", String(64), nullable=False),
    Column("started", Boolean, nullable=False),
    Column("committed_rounds", Integer, nullable=False),
    Column("deployment_id", String(32)),
    Column("signing_key", LargeBinary(32)),
    Column("released", Integer),
    Column("release_policy", String(12)),
    # Why training rests although rounds are left.
    Column("stopped", Text),
    # Features of strangers that the operator has handed over.
    Column("cohort_blob", String(64)),
    Column("cohort_rows", Integer, nullable=False, server_default="0"),
)

course = Table(
    "course",
    metadata,
    Column("id", Integer, CheckConstraint("id = 1", name="single"), primary_key=True, autoincrement=False),
    # What the server's step is multiplied by, and evaluations in a row that found a candidate worse than the best.
    Column("step", Float, nullable=False),
    Column("worse", Integer, nullable=False),
    # The best version so far, and the released one, as they were measured together.
    Column("best", String(64)),
    Column("around", Float),
    Column("released", String(64)),
    Column("released_around", Float),
    # The state that training would return to, where it is not the present one.
    Column("kept_version", String(64)),
    Column("algorithm_blob", String(64)),
    Column("optimiser_blob", String(64)),
)

models = Table(
    "models",
    metadata,
    Column("model_version", String(64), primary_key=True),
    Column("round_id", Integer, nullable=False),
    Column("theta_blob", String(64), nullable=False),
    Column("calibration_blob", String(64)),
    Column("calibration_source", Text),
    Column("created", Float, nullable=False),
    Column("judged", LargeBinary),
)

releases = Table(
    "releases",
    metadata,
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("model_version", String(64), nullable=False),
    # Of the bundle and of its calibration; empty where it has none.
    Column("bundle", String(64), nullable=False),
    Column("calibration", String(64), nullable=False),
    Column("calibration_blob", String(64)),
    Column("calibration_source", Text),
    Column("record", LargeBinary, nullable=False),
    Column("signature", LargeBinary(64), nullable=False),
    Column("created", Float, nullable=False),
    # Whether its parameters and its calibration are still here.
    Column("kept", Boolean, nullable=False),
)

users = Table(
    "users",
    metadata,
    Column("user", String(64), primary_key=True),
    Column("created", Float, nullable=False),
    Column("admitted", Boolean, nullable=False),
    Column("vouched", Boolean, nullable=False, server_default=true()),
    Column("anew", Boolean, nullable=False, server_default=false()),
    Column("samples", Integer, nullable=False, server_default="1"),
    # Whether they never train; not known before the first admission.
    Column("evaluates", Boolean),
    Column("admission_sealed", LargeBinary),
)

templates = Table(
    "templates",
    metadata,
    Column("user", String(64), ForeignKey("users.user", ondelete="CASCADE"), primary_key=True),
    Column("model_version", String(64), primary_key=True),
    # Digest of the calibration that its threshold was read from; empty where it names none.
    Column("calibration", String(64), primary_key=True),
    Column("sealed", LargeBinary, nullable=False),
    Column("received", Float, nullable=False),
)

devices = Table(
    "devices",
    metadata,
    Column("device_id", String(32), primary_key=True),
    Column("user", String(64), ForeignKey("users.user", ondelete="CASCADE"), nullable=False),
    Column("signing_key", LargeBinary(32), nullable=False),
    Column("sealing_key", LargeBinary(32), nullable=False),
    Column("created", Float, nullable=False),
    Column("last_number", BigInteger, nullable=False, server_default="0"),
    Column("state", String(12), nullable=False, server_default="active"),
    Column("former_signing_key", LargeBinary(32)),
    Index(None, "user"),
)

refusals = Table(
    "refusals",
    metadata,
    # A device that will not verify by a release, for its own samples or impostors would be decided wrongly.
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("device_id", String(32), ForeignKey("devices.device_id", ondelete="CASCADE"), primary_key=True),
    Column("user", String(64), nullable=False),
    Index(None, "user"),
)

rounds = Table(
    "rounds",
    metadata,
    Column("round_id", Integer, primary_key=True, autoincrement=False),
    Column("state", String(16), nullable=False),
    Column("model_version", String(64), nullable=False),
    Column("config_digest", String(64), nullable=False),
    Column("server_key_id", String(32), nullable=False),
    Column("seed", String(80), nullable=False),
    Column("cohort", Integer, nullable=False),
    Column("quorum", Integer, nullable=False),
    Column("opened", Float, nullable=False),
    Column("deadline", Float),
    Column("closed", Float),
    Column("accepted", Integer, nullable=False),
    Column("result_version", String(64)),
    Column("reason", Text),
    Column("clip_norm", Float),
    Column("norm_median", Float),
    Index(None, "state"),
)

cohort = Table(
    "cohort",
    metadata,
    Column("round_id", Integer, ForeignKey("rounds.round_id", ondelete="CASCADE"), primary_key=True),
    Column("device_id", String(32), primary_key=True),
    Column("user", String(64), nullable=False),
    Column("request_sealed", LargeBinary),
    Index(None, "user"),
)

uploads = Table(
    "uploads",
    metadata,
    Column("round_id", Integer, ForeignKey("rounds.round_id", ondelete="CASCADE"), primary_key=True),
    Column("device_id", String(32), primary_key=True),
    Column("user", String(64), nullable=False),
    Column("nonce", String(32), nullable=False),
    Column("digest", String(64), nullable=False),
    Column("norm", Float, nullable=False),
    Column("samples", Integer, nullable=False),
    Column("head_sealed", LargeBinary),
    Column("blob", String(64)),
    Column("received", Float, nullable=False),
    Index(None, "user"),
)

evaluations = Table(
    "evaluations",
    metadata,
    Column("evaluation_id", Integer, primary_key=True, autoincrement=False),
    Column("state", String(16), nullable=False),
    Column("cause", String(16), nullable=False),
    Column("candidate", String(64), nullable=False),
    Column("released", String(64), nullable=False),
    Column("impostors", String(16), nullable=False),
    Column("config_digest", String(64), nullable=False),
    Column("server_key_id", String(32), nullable=False),
    Column("committed_rounds", Integer, nullable=False),
    Column("cohort_rows", Integer, nullable=False),
    Column("opened", Float, nullable=False),
    Column("deadline", Float),
    Column("closed", Float),
    Column("asked", Integer, nullable=False),
    Column("arrived", Integer, nullable=False),
    Column("outcome", String(16)),
    Column("release", Integer),
    # What was measured, as JSON: numbers over people.
    Column("summary", Text),
    # float32, little endian: what the second report on the released model is without.
    Column("centre", LargeBinary),
    Column("verifies_centred", Boolean, nullable=False, server_default=false()),
    Index(None, "state"),
)

reports = Table(
    "reports",
    metadata,
    Column("evaluation_id", Integer, ForeignKey("evaluations.evaluation_id", ondelete="CASCADE"), primary_key=True),
    Column("device_id", String(32), primary_key=True),
    Column("user", String(64), nullable=False),
    Column("nonce", String(32), nullable=False),
    Column("digest", String(64), nullable=False),
    Column("evaluates", Boolean, nullable=False),
    Column("blob", String(64)),
    Column("received", Float, nullable=False),
    Index(None, "user"),
)

tokens = Table(
    "tokens",
    metadata,
    Column("token_id", String(16), primary_key=True),
    Column("digest", String(64), nullable=False),
    Column("scopes", String(80), nullable=False),
    Column("label", String(100), nullable=False),
    Column("user", String(64)),
    Column("created", Float, nullable=False),
    Column("expires", Float),
    Column("max_uses", Integer),
    Column("uses", Integer, nullable=False),
    Column("revoked", Boolean, nullable=False),
    # Whether it verifies only those whom token_users names.
    Column("limited", Boolean, nullable=False, server_default=false()),
    # The secret before the newest, and until when it is taken.
    Column("former_digest", String(64)),
    Column("former_until", Float),
)

token_users = Table(
    "token_users",
    metadata,
    Column("token_id", String(16), ForeignKey("tokens.token_id", ondelete="CASCADE"), primary_key=True),
    Column("user", String(64), primary_key=True),
    Index(None, "user"),
)

server_keys = Table(
    "server_keys",
    metadata,
    Column("key_id", String(32), primary_key=True),
    Column("created", Float, nullable=False),
    Column("retired", Float),
)

attempts = Table(
    "attempts",
    metadata,
    # A caller's at one person; an empty column stands for every caller, or for everybody.
    Column("caller", String(16), primary_key=True),
    Column("user", String(64), primary_key=True),
    Column("failures", Integer, nullable=False),
    Column("unusable", Integer, nullable=False),
    Column("since_s", Float, nullable=False),
    Column("hour_level", Float, nullable=False),
    Column("day_level", Float, nullable=False),
    Column("levels_s", Float, nullable=False),
    Column("accepted_s", Float),
    Index(None, "user"),
)

removals = Table(
    "removals",
    metadata,
    Column("path", String(100), primary_key=True),
)

deletions = Table(
    "deletions",
    metadata,
    Column("deletion_id", String(32), primary_key=True),
    Column("requested", Float, nullable=False),
    Column("completed", Float),
    Column("sealed", LargeBinary),
)

audit = Table(
    "audit",
    metadata,
    # Triggers of the migration let nobody change or delete a row.
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("at_ms", BigInteger, nullable=False),
    Column("actor", String(40), nullable=False),
    Column("action", String(40), nullable=False),
    # A mark under a person's own key; empty where it is about nobody.
    Column("subject", String(32), nullable=False),
    Column("detail", Text, nullable=False),
    Column("digest", String(64), nullable=False),
    Index(None, "subject"),
)

PERSONAL = tuple(table for table in reversed(metadata.sorted_tables) if "user" in table.c)
"""Tables whose rows belong to a user, named in the column ``user``: children first."""
