"""The library's own subcommands of ``uvsdk``; what one needs is imported when it runs."""

from __future__ import annotations

from uvsdk.cli import Command
from uvsdk.commands import algorithms, bundle, calibrate, evaluate, export, identifiers, models, presentation, simulate

COMMANDS: tuple[Command, ...] = (
    algorithms.COMMAND,
    bundle.COMMAND,
    calibrate.COMMAND,
    evaluate.COMMAND,
    export.COMMAND,
    identifiers.COMMAND,
    models.COMMAND,
    presentation.COMMAND,
    simulate.COMMAND,
)
