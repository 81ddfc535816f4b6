"""The ``uvsdk`` command. Each installed package adds its own subcommands through an entry point."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points, version

from uvsdk.errors import UvsdkError


@dataclass(frozen=True, slots=True)
class Command:
    """One subcommand: ``configure`` adds its arguments, ``run`` does the work and gives the exit status."""

    name: str
    help: str
    configure: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


def commands() -> list[Command]:
    """Every subcommand of every package that is installed with what it needs, sorted by name."""
    return _load()[0]


def _load() -> tuple[list[Command], list[str]]:
    """The subcommands, and the extras without which others are missing (an entry point is named as its extra)."""
    found: list[Command] = []
    missing: list[str] = []
    for entry in entry_points(group="uvsdk.commands"):
        try:
            found += entry.load()
        except ModuleNotFoundError:
            missing.append(entry.name)
    return sorted(found, key=lambda command: command.name), sorted(missing)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one subcommand. An expected failure prints one line and gives 1; a wrong call gives 2."""
    found, missing = _load()
    parser = argparse.ArgumentParser(
        prog="uvsdk",
        description="User verification that learns without pooling.",
        epilog="".join(f"More commands with: pip install 'uvsdk[{extra}]'. " for extra in missing),
    )
    parser.add_argument("--version", action="version", version=f"uvsdk {version('uvsdk')}")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="command")
    for command in found:
        subparser = subparsers.add_parser(command.name, help=command.help, description=command.help)
        command.configure(subparser)
        subparser.set_defaults(run=command.run)
    parsed = parser.parse_args(arguments)
    try:
        status: int = parsed.run(parsed)
        sys.stdout.flush()
    except UvsdkError as error:
        print(f"uvsdk {parsed.command}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader (head, a closed pager) has seen enough. Python flushes once more at exit: give that no pipe.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    return status
