"""The number of the last message of each device about its user.

Revision ID: 0006
Revises: 0005
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column."""
    op.add_column("devices", sa.Column("last_number", sa.BigInteger, nullable=False, server_default="0"))


def downgrade() -> None:
    """Drop it."""
    op.drop_column("devices", "last_number")
