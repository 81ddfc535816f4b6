"""What each device of a cohort asked for, and how many samples each user joined with.

Revision ID: 0002
Revises: 0001
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns."""
    op.add_column("cohort", sa.Column("request_sealed", sa.LargeBinary))
    op.add_column("users", sa.Column("samples", sa.Integer, nullable=False, server_default="1"))


def downgrade() -> None:
    """Drop them."""
    with op.batch_alter_table("users") as table:
        table.drop_column("samples")
    with op.batch_alter_table("cohort") as table:
        table.drop_column("request_sealed")
