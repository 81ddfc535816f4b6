"""Who an enrolment token is for, how far a device is trusted, and operators' tokens that expire.

Devices of before were registered by whoever had a token, as was right then, and stay what they were: active. An
operator's token of before lives for as long from now on as a new one.

Revision ID: 0009
Revises: 0008
"""

from __future__ import annotations

import time

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

_OPERATOR_LIFETIME_S = 90 * 86_400.0


def upgrade() -> None:
    """Add the columns."""
    op.add_column("tokens", sa.Column("user", sa.String(64)))
    op.add_column("devices", sa.Column("state", sa.String(12), nullable=False, server_default="active"))
    op.add_column("devices", sa.Column("former_signing_key", sa.LargeBinary(32)))
    op.add_column("users", sa.Column("vouched", sa.Boolean, nullable=False, server_default=sa.true()))
    op.add_column("users", sa.Column("anew", sa.Boolean, nullable=False, server_default=sa.false()))
    tokens = sa.table("tokens", sa.column("scopes", sa.String), sa.column("expires", sa.Float))
    never = tokens.c.expires.is_(None) & tokens.c.scopes.contains("operator")
    op.execute(tokens.update().where(never).values(expires=time.time() + _OPERATOR_LIFETIME_S))


def downgrade() -> None:
    """Drop them."""
    op.drop_column("users", "anew")
    op.drop_column("users", "vouched")
    op.drop_column("devices", "former_signing_key")
    op.drop_column("devices", "state")
    op.drop_column("tokens", "user")
