"""Tokens that verify named people only, and secrets that are replaced.

Revision ID: 0017
Revises: 0016
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add columns and table; tokens so far are for everybody, with the secret they were made with."""
    op.add_column("tokens", sa.Column("limited", sa.Boolean, nullable=False, server_default=sa.false()))
    op.add_column("tokens", sa.Column("former_digest", sa.String(64)))
    op.add_column("tokens", sa.Column("former_until", sa.Float))
    op.create_table(
        "token_users",
        sa.Column("token_id", sa.String(16), sa.ForeignKey("tokens.token_id", ondelete="CASCADE"), primary_key=True),
        sa.Column("user", sa.String(64), primary_key=True),
    )
    op.create_index("ix_token_users_user", "token_users", ["user"])


def downgrade() -> None:
    """Drop them; whoever had a token for some people only would have it for everybody, so such tokens are revoked."""
    op.execute(sa.text("UPDATE tokens SET revoked = true WHERE limited"))
    op.drop_table("token_users")
    for column in ("former_until", "former_digest", "limited"):
        op.drop_column("tokens", column)
