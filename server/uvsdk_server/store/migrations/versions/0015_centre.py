"""What is subtracted in the second report on the model that verifies.

Revision ID: 0015
Revises: 0014
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns; evaluations so far had no second report."""
    op.add_column("evaluations", sa.Column("centre", sa.LargeBinary))
    op.add_column("evaluations", sa.Column("verifies_centred", sa.Boolean, nullable=False, server_default=sa.false()))


def downgrade() -> None:
    """Drop them."""
    op.drop_column("evaluations", "verifies_centred")
    op.drop_column("evaluations", "centre")
