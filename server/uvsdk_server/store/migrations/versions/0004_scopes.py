"""A token may have several scopes.

Revision ID: 0004
Revises: 0003
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Rename and widen the column; one scope reads as a list of one."""
    with op.batch_alter_table("tokens") as table:
        table.alter_column(
            "scope",
            new_column_name="scopes",
            existing_type=sa.String(16),
            type_=sa.String(80),
            existing_nullable=False,
        )


def downgrade() -> None:
    """Keep each token's first scope, which is the narrowest that says what it is for."""
    op.execute("UPDATE tokens SET scopes = 'verify' WHERE scopes LIKE '%verify%'")
    with op.batch_alter_table("tokens") as table:
        table.alter_column(
            "scopes",
            new_column_name="scope",
            existing_type=sa.String(80),
            type_=sa.String(16),
            existing_nullable=False,
        )
