"""Failed attempts in a row, for each person and for each caller.

Revision ID: 0003
Revises: 0002
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table."""
    op.create_table(
        "attempts",
        sa.Column("whose", sa.String(8), nullable=False),
        sa.Column("subject", sa.String(64), nullable=False),
        sa.Column("failures", sa.Integer, nullable=False),
        sa.Column("unusable", sa.Integer, nullable=False),
        sa.Column("since_s", sa.Float, nullable=False),
        sa.PrimaryKeyConstraint("whose", "subject", name=op.f("pk_attempts")),
    )


def downgrade() -> None:
    """Drop it."""
    op.drop_table("attempts")
