"""Failed attempts in windows: of each caller, at each person, and of each caller at each person.

Revision ID: 0008
Revises: 0007
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the table anew. What was counted in a row, of persons and of callers, fills their windows."""
    rows = op.get_bind().execute(sa.text("SELECT whose, subject, failures, unusable, since_s FROM attempts")).all()
    op.drop_table("attempts")
    table = op.create_table(
        "attempts",
        sa.Column("caller", sa.String(16), nullable=False),
        sa.Column("user", sa.String(64), nullable=False),
        sa.Column("failures", sa.Integer, nullable=False),
        sa.Column("unusable", sa.Integer, nullable=False),
        sa.Column("since_s", sa.Float, nullable=False),
        sa.Column("hour_level", sa.Float, nullable=False),
        sa.Column("day_level", sa.Float, nullable=False),
        sa.Column("levels_s", sa.Float, nullable=False),
        sa.Column("accepted_s", sa.Float),
        sa.PrimaryKeyConstraint("caller", "user", name=op.f("pk_attempts")),
    )
    op.create_index(op.f("ix_attempts_user"), "attempts", ["user"])
    op.bulk_insert(
        table,
        [
            {
                "caller": subject if whose == "caller" else "",
                "user": subject if whose == "person" else "",
                "failures": failures,
                "unusable": unusable,
                "since_s": since_s,
                "hour_level": float(failures),
                "day_level": float(failures),
                "levels_s": since_s,
                "accepted_s": None,
            }
            for whose, subject, failures, unusable, since_s in rows
        ],
    )


def downgrade() -> None:
    """Make the former table again; what was counted in windows is forgotten."""
    op.drop_index(op.f("ix_attempts_user"), "attempts")
    op.drop_table("attempts")
    op.create_table(
        "attempts",
        sa.Column("whose", sa.String(8), nullable=False),
        sa.Column("subject", sa.String(64), nullable=False),
        sa.Column("failures", sa.Integer, nullable=False),
        sa.Column("unusable", sa.Integer, nullable=False),
        sa.Column("since_s", sa.Float, nullable=False),
        sa.PrimaryKeyConstraint("whose", "subject", name=op.f("pk_attempts")),
    )
