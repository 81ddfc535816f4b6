"""Evaluations of candidates, the reports of devices, and who only evaluates.

Whoever was admitted before has trained, and goes on.

Revision ID: 0012
Revises: 0011
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the tables, and add the columns."""
    op.create_table(
        "evaluations",
        sa.Column("evaluation_id", sa.Integer, autoincrement=False, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("cause", sa.String(16), nullable=False),
        sa.Column("candidate", sa.String(64), nullable=False),
        sa.Column("released", sa.String(64), nullable=False),
        sa.Column("impostors", sa.String(16), nullable=False),
        sa.Column("config_digest", sa.String(64), nullable=False),
        sa.Column("server_key_id", sa.String(32), nullable=False),
        sa.Column("committed_rounds", sa.Integer, nullable=False),
        sa.Column("cohort_rows", sa.Integer, nullable=False),
        sa.Column("opened", sa.Float, nullable=False),
        sa.Column("deadline", sa.Float),
        sa.Column("closed", sa.Float),
        sa.Column("asked", sa.Integer, nullable=False),
        sa.Column("arrived", sa.Integer, nullable=False),
        sa.Column("outcome", sa.String(16)),
        sa.Column("release", sa.Integer),
        sa.Column("summary", sa.Text),
        sa.PrimaryKeyConstraint("evaluation_id", name=op.f("pk_evaluations")),
    )
    op.create_index(op.f("ix_evaluations_state"), "evaluations", ["state"])
    op.create_table(
        "reports",
        sa.Column("evaluation_id", sa.Integer, nullable=False),
        sa.Column("device_id", sa.String(32), nullable=False),
        sa.Column("user", sa.String(64), nullable=False),
        sa.Column("nonce", sa.String(32), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("evaluates", sa.Boolean, nullable=False),
        sa.Column("blob", sa.String(64)),
        sa.Column("received", sa.Float, nullable=False),
        sa.ForeignKeyConstraint(
            ["evaluation_id"],
            ["evaluations.evaluation_id"],
            ondelete="CASCADE",
            name=op.f("fk_reports_evaluation_id"),
        ),
        sa.PrimaryKeyConstraint("evaluation_id", "device_id", name=op.f("pk_reports")),
    )
    op.create_index(op.f("ix_reports_user"), "reports", ["user"])
    op.add_column("users", sa.Column("evaluates", sa.Boolean))
    op.add_column("deployment", sa.Column("stopped", sa.Text))
    op.add_column("deployment", sa.Column("forgiven", sa.Integer, nullable=False, server_default="0"))
    users = sa.table("users", sa.column("evaluates", sa.Boolean), sa.column("admitted", sa.Boolean))
    op.execute(users.update().where(users.c.admitted).values(evaluates=False))


def downgrade() -> None:
    """Drop them."""
    op.drop_column("deployment", "forgiven")
    op.drop_column("deployment", "stopped")
    op.drop_column("users", "evaluates")
    op.drop_index(op.f("ix_reports_user"), "reports")
    op.drop_table("reports")
    op.drop_index(op.f("ix_evaluations_state"), "evaluations")
    op.drop_table("evaluations")
