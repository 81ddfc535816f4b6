"""Releases, and a template of each that a device left here.

The model that verified until now becomes release 1 at the next start, which has the key to sign it with. A template
moves over as it is sealed; which calibration its threshold was read from stands inside.

Revision ID: 0011
Revises: 0010
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

_MOVE = """
INSERT INTO templates ("user", model_version, calibration, sealed, received)
SELECT "user", template_version, '', template_sealed, created FROM users
WHERE template_sealed IS NOT NULL AND template_version IS NOT NULL
"""

_MOVE_BACK = """
UPDATE users SET
    template_sealed = (SELECT sealed FROM templates WHERE templates."user" = users."user"
                       ORDER BY received DESC LIMIT 1),
    template_version = (SELECT model_version FROM templates WHERE templates."user" = users."user"
                        ORDER BY received DESC LIMIT 1)
"""


def upgrade() -> None:
    """Create the tables, move the templates."""
    op.add_column("deployment", sa.Column("released", sa.Integer))
    op.add_column("deployment", sa.Column("release_policy", sa.String(12)))
    op.add_column("models", sa.Column("judged", sa.LargeBinary))
    op.create_table(
        "releases",
        sa.Column("number", sa.Integer, nullable=False, autoincrement=False),
        sa.Column("model_version", sa.String(64), nullable=False),
        sa.Column("bundle", sa.String(64), nullable=False),
        sa.Column("calibration", sa.String(64), nullable=False),
        sa.Column("calibration_blob", sa.String(64)),
        sa.Column("calibration_source", sa.Text),
        sa.Column("record", sa.LargeBinary, nullable=False),
        sa.Column("signature", sa.LargeBinary(64), nullable=False),
        sa.Column("created", sa.Float, nullable=False),
        sa.Column("kept", sa.Boolean, nullable=False),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_releases")),
    )
    op.create_table(
        "templates",
        sa.Column("user", sa.String(64), nullable=False),
        sa.Column("model_version", sa.String(64), nullable=False),
        sa.Column("calibration", sa.String(64), nullable=False),
        sa.Column("sealed", sa.LargeBinary, nullable=False),
        sa.Column("received", sa.Float, nullable=False),
        sa.ForeignKeyConstraint(["user"], ["users.user"], name=op.f("fk_templates_user"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("user", "model_version", "calibration", name=op.f("pk_templates")),
    )
    op.create_table(
        "refusals",
        sa.Column("number", sa.Integer, nullable=False, autoincrement=False),
        sa.Column("device_id", sa.String(32), nullable=False),
        sa.Column("user", sa.String(64), nullable=False),
        sa.ForeignKeyConstraint(
            ["device_id"], ["devices.device_id"], name=op.f("fk_refusals_device_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("number", "device_id", name=op.f("pk_refusals")),
    )
    op.create_index(op.f("ix_refusals_user"), "refusals", ["user"])
    op.execute(_MOVE)
    op.drop_column("users", "template_version")
    op.drop_column("users", "template_sealed")


def downgrade() -> None:
    """Keep the newest template of each user, and forget the releases."""
    op.add_column("users", sa.Column("template_sealed", sa.LargeBinary))
    op.add_column("users", sa.Column("template_version", sa.String(64)))
    op.execute(_MOVE_BACK)
    op.drop_index(op.f("ix_refusals_user"), "refusals")
    op.drop_table("refusals")
    op.drop_table("templates")
    op.drop_table("releases")
    op.drop_column("models", "judged")
    op.drop_column("deployment", "release_policy")
    op.drop_column("deployment", "released")
