"""The longest update that counts in a round, and the median of those that were taken.

Revision ID: 0007
Revises: 0006
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns; a round from before announced no norm."""
    op.add_column("rounds", sa.Column("clip_norm", sa.Float))
    op.add_column("rounds", sa.Column("norm_median", sa.Float))


def downgrade() -> None:
    """Drop them."""
    op.drop_column("rounds", "norm_median")
    op.drop_column("rounds", "clip_norm")
