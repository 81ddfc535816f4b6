"""The best state of a training, to return to, and how long the server's step is.

Revision ID: 0014
Revises: 0013
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table; how many evaluations were worse is counted in it from now on."""
    op.create_table(
        "course",
        sa.Column("id", sa.Integer, autoincrement=False, nullable=False),
        sa.Column("step", sa.Float, nullable=False),
        sa.Column("worse", sa.Integer, nullable=False),
        sa.Column("best", sa.String(64)),
        sa.Column("around", sa.Float),
        sa.Column("released", sa.String(64)),
        sa.Column("released_around", sa.Float),
        sa.Column("kept_version", sa.String(64)),
        sa.Column("algorithm_blob", sa.String(64)),
        sa.Column("optimiser_blob", sa.String(64)),
        sa.CheckConstraint("id = 1", name=op.f("ck_course_single")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_course")),
    )
    op.drop_column("deployment", "forgiven")


def downgrade() -> None:
    """Drop it."""
    op.add_column("deployment", sa.Column("forgiven", sa.Integer, nullable=False, server_default="0"))
    op.drop_table("course")
