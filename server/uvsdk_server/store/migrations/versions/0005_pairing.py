"""Which data folder the database belongs to, and which of its files are to be removed.

Revision ID: 0005
Revises: 0004
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns, empty until the next start has compared folder and database, and the table."""
    op.add_column("deployment", sa.Column("deployment_id", sa.String(32)))
    op.add_column("deployment", sa.Column("signing_key", sa.LargeBinary(32)))
    op.create_table(
        "removals",
        sa.Column("path", sa.String(100), nullable=False),
        sa.PrimaryKeyConstraint("path", name=op.f("pk_removals")),
    )


def downgrade() -> None:
    """Drop them."""
    op.drop_table("removals")
    with op.batch_alter_table("deployment") as table:
        table.drop_column("signing_key")
        table.drop_column("deployment_id")
