"""The ``uvsdk`` command. Each installed package adds its own subcommands through an entry point."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points, version
from typing import TYPE_CHECKING, Final

from uvsdk.errors import UvsdkError

if TYPE_CHECKING:
    from uvsdk.records.codec import Scalar

TRACEBACK_VARIABLE: Final = "UVSDK_TRACEBACK"
"""Set, an error's traceback is printed before its line."""


@dataclass(frozen=True, slots=True)
class Command:
    """One subcommand: ``configure`` adds its arguments, ``run`` does the work and gives the exit status."""

    name: str
    help: str
    configure: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


def setting(text: str) -> tuple[str, Scalar]:
    """An argument ``NAME=VALUE``: true, false, a whole number, a decimal number, or text, whichever it reads as first.

    >>> setting("margin=0.5"), setting("unit_mean=true"), setting("rounds=7")
    (('margin', 0.5), ('unit_mean', True), ('rounds', 7))
    """
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise argparse.ArgumentTypeError(f"expected NAME=VALUE, got {text!r}")
    if value in ("true", "false"):
        return name, value == "true"
    for kind in (int, float):
        try:
            return name, kind(value)
        except ValueError:
            continue
    return name, value


def commands() -> list[Command]:
    """Every subcommand of every package that is installed with what it needs, sorted by name."""
    return _load()[0]


def _load(wanted: str = "") -> tuple[list[Command], list[str]]:
    """The subcommands, and the extras without which others are missing (an entry point is named as its extra).

    Packages are loaded up to the one that has the command ``wanted``: the server's, which comes last, takes a second.
    """
    found: list[Command] = []
    missing: list[str] = []
    for entry in sorted(entry_points(group="uvsdk.commands"), key=lambda entry: entry.name):
        try:
            found += entry.load()
        except ModuleNotFoundError:
            missing.append(entry.name)
        if any(command.name == wanted for command in found):
            break
    return sorted(found, key=lambda command: command.name), sorted(missing)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one subcommand; the one place where an error becomes a line and an exit status.

    Returns:
        What the subcommand says: 0, or 3 for a probe that was rejected. 1 for every failure, with one line on standard
        error. 2 for a wrong call. 130 after Ctrl-C, 141 where the reader of the output has gone.
    """
    # A name that the terminal's encoding lacks is shown by its escapes; it is no reason to fail.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    name = "uvsdk"
    try:
        parsed = _parsed(arguments)
        name = f"uvsdk {parsed.command}"
        return _run(parsed)
    except KeyboardInterrupt:
        return _failed(f"{name}: interrupted", 130)
    except BrokenPipeError:  # the reader (head, a closed pager) has seen enough
        return _failed("", 141)
    except Exception as error:  # noqa: BLE001 - whatever it is, it ends in one line
        if os.environ.get(TRACEBACK_VARIABLE):
            traceback.print_exc()
        return _failed(f"{name}: {_words(error)}", 1)


def _parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    given = sys.argv[1:] if arguments is None else arguments
    found, missing = _load(given[0] if given else "")
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
    return parser.parse_args(arguments)


def _run(parsed: argparse.Namespace) -> int:
    try:
        status: int = parsed.run(parsed)
    except SystemExit as end:  # of a library; 3 would say that a probe was rejected
        raise UvsdkError(f"it ended early ({end.code})") from end
    if sys.stdout is not None:
        sys.stdout.flush()
    return status


def _words(error: Exception) -> str:
    """What is to be said of an error, on one line."""
    if isinstance(error, UvsdkError):
        text = str(error)
    elif isinstance(error, OSError) and error.strerror:
        text = error.strerror if error.filename is None else f"{error.filename}: {error.strerror}"
    elif isinstance(error, ModuleNotFoundError):
        text = f"this needs the package {error.name}, which is not installed"
    elif isinstance(error, EOFError):
        text = "the input ended where an answer was needed"
    elif isinstance(error, MemoryError):
        text = "not enough memory"
    else:
        text = (
            f"a fault of ours, please report it: {type(error).__name__}: {error} ({TRACEBACK_VARIABLE}=1 shows where)"
        )
    return " ".join(text.split())


def _failed(line: str, status: int) -> int:
    # What could not be written would be tried again, and complained of, when Python exits.
    for stream, text in ((sys.stdout, ""), (sys.stderr, line)):
        if stream is None:
            continue
        try:
            print(text, end="\n" if text else "", file=stream, flush=True)
        except (OSError, ValueError):
            with contextlib.suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    return status
