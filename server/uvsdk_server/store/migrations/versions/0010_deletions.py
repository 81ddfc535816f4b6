"""Deletions of users that are under way, and for a while those that are complete.

Revision ID: 0010
Revises: 0009
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table."""
    op.create_table(
        "deletions",
        sa.Column("deletion_id", sa.String(32), nullable=False),
        sa.Column("requested", sa.Float, nullable=False),
        sa.Column("completed", sa.Float),
        sa.Column("sealed", sa.LargeBinary),
        sa.PrimaryKeyConstraint("deletion_id", name=op.f("pk_deletions")),
    )


def downgrade() -> None:
    """Drop it."""
    op.drop_table("deletions")
