"""The operator's cohort of features.

Revision ID: 0013
Revises: 0012
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns."""
    op.add_column("deployment", sa.Column("cohort_blob", sa.String(64)))
    op.add_column("deployment", sa.Column("cohort_rows", sa.Integer, nullable=False, server_default="0"))


def downgrade() -> None:
    """Drop them."""
    op.drop_column("deployment", "cohort_rows")
    op.drop_column("deployment", "cohort_blob")
