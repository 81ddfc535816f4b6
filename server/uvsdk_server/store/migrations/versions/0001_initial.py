"""The tables of version 0.1.

Revision ID: 0001
Revises:
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create every table."""
    _model_tables()
    _people_tables()
    _round_tables()
    _key_tables()


def _model_tables() -> None:
    op.create_table(
        "deployment",
        sa.Column("id", sa.Integer, autoincrement=False, nullable=False),
        sa.Column("config", sa.Text, nullable=False),
        sa.Column("seed", sa.String(80), nullable=False),
        sa.Column("model_version", sa.String(64), nullable=False),
        sa.Column("base_blob", sa.String(64), nullable=False),
        sa.Column("algorithm_blob", sa.String(64), nullable=False),
        sa.Column("optimiser_blob", sa.String(64), nullable=False),
        sa.Column("started", sa.Boolean, nullable=False),
        sa.Column("committed_rounds", sa.Integer, nullable=False),
        sa.CheckConstraint("id = 1", name=op.f("ck_deployment_single")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_deployment")),
    )
    op.create_table(
        "models",
        sa.Column("model_version", sa.String(64), nullable=False),
        sa.Column("round_id", sa.Integer, nullable=False),
        sa.Column("theta_blob", sa.String(64), nullable=False),
        sa.Column("calibration_blob", sa.String(64)),
        sa.Column("calibration_source", sa.Text),
        sa.Column("created", sa.Float, nullable=False),
        sa.PrimaryKeyConstraint("model_version", name=op.f("pk_models")),
    )


def _people_tables() -> None:
    op.create_table(
        "users",
        sa.Column("user", sa.String(64), nullable=False),
        sa.Column("created", sa.Float, nullable=False),
        sa.Column("admitted", sa.Boolean, nullable=False),
        sa.Column("admission_sealed", sa.LargeBinary),
        sa.Column("template_sealed", sa.LargeBinary),
        sa.Column("template_version", sa.String(64)),
        sa.PrimaryKeyConstraint("user", name=op.f("pk_users")),
    )
    op.create_table(
        "devices",
        sa.Column("device_id", sa.String(32), nullable=False),
        sa.Column("user", sa.String(64), nullable=False),
        sa.Column("signing_key", sa.LargeBinary(32), nullable=False),
        sa.Column("sealing_key", sa.LargeBinary(32), nullable=False),
        sa.Column("created", sa.Float, nullable=False),
        sa.ForeignKeyConstraint(["user"], ["users.user"], name=op.f("fk_devices_user"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("device_id", name=op.f("pk_devices")),
    )
    op.create_index(op.f("ix_devices_user"), "devices", ["user"])


def _round_tables() -> None:
    op.create_table(
        "rounds",
        sa.Column("round_id", sa.Integer, autoincrement=False, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("model_version", sa.String(64), nullable=False),
        sa.Column("config_digest", sa.String(64), nullable=False),
        sa.Column("server_key_id", sa.String(32), nullable=False),
        sa.Column("seed", sa.String(80), nullable=False),
        sa.Column("cohort", sa.Integer, nullable=False),
        sa.Column("quorum", sa.Integer, nullable=False),
        sa.Column("opened", sa.Float, nullable=False),
        sa.Column("deadline", sa.Float),
        sa.Column("closed", sa.Float),
        sa.Column("accepted", sa.Integer, nullable=False),
        sa.Column("result_version", sa.String(64)),
        sa.Column("reason", sa.Text),
        sa.PrimaryKeyConstraint("round_id", name=op.f("pk_rounds")),
    )
    op.create_index(op.f("ix_rounds_state"), "rounds", ["state"])
    op.create_table(
        "cohort",
        sa.Column("round_id", sa.Integer, nullable=False),
        sa.Column("device_id", sa.String(32), nullable=False),
        sa.Column("user", sa.String(64), nullable=False),
        sa.ForeignKeyConstraint(["round_id"], ["rounds.round_id"], name=op.f("fk_cohort_round_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("round_id", "device_id", name=op.f("pk_cohort")),
    )
    op.create_index(op.f("ix_cohort_user"), "cohort", ["user"])
    op.create_table(
        "uploads",
        sa.Column("round_id", sa.Integer, nullable=False),
        sa.Column("device_id", sa.String(32), nullable=False),
        sa.Column("user", sa.String(64), nullable=False),
        sa.Column("nonce", sa.String(32), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("norm", sa.Float, nullable=False),
        sa.Column("samples", sa.Integer, nullable=False),
        sa.Column("head_sealed", sa.LargeBinary),
        sa.Column("blob", sa.String(64)),
        sa.Column("received", sa.Float, nullable=False),
        sa.ForeignKeyConstraint(
            ["round_id"], ["rounds.round_id"], name=op.f("fk_uploads_round_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("round_id", "device_id", name=op.f("pk_uploads")),
    )
    op.create_index(op.f("ix_uploads_user"), "uploads", ["user"])


def _key_tables() -> None:
    op.create_table(
        "tokens",
        sa.Column("token_id", sa.String(16), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("scope", sa.String(16), nullable=False),
        sa.Column("label", sa.String(100), nullable=False),
        sa.Column("created", sa.Float, nullable=False),
        sa.Column("expires", sa.Float),
        sa.Column("max_uses", sa.Integer),
        sa.Column("uses", sa.Integer, nullable=False),
        sa.Column("revoked", sa.Boolean, nullable=False),
        sa.PrimaryKeyConstraint("token_id", name=op.f("pk_tokens")),
    )
    op.create_table(
        "server_keys",
        sa.Column("key_id", sa.String(32), nullable=False),
        sa.Column("created", sa.Float, nullable=False),
        sa.Column("retired", sa.Float),
        sa.PrimaryKeyConstraint("key_id", name=op.f("pk_server_keys")),
    )


def downgrade() -> None:
    """Drop every table."""
    for table in ("server_keys", "tokens", "uploads", "cohort", "rounds", "devices", "users", "models", "deployment"):
        op.drop_table(table)
