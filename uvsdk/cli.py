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
    """Every subcommand of every installed package, sorted by name."""
    found = [command for entry in entry_points(group="uvsdk.commands") for command in entry.load()]
    return sorted(found, key=lambda command: command.name)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one subcommand. An expected failure prints one line and gives 1; a wrong call gives 2."""
    parser = argparse.ArgumentParser(prog="uvsdk", description="User verification that learns without pooling.")
    parser.add_argument("--version", action="version", version=f"uvsdk {version('uvsdk')}")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="command")
    for command in commands():
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
