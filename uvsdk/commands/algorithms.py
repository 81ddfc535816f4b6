"""``uvsdk algorithms``: the algorithms there are, and what leaves the device under each."""

from __future__ import annotations

import argparse

from uvsdk.cli import Command


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--table", action="store_true", help="print the Markdown tables of docs/privacy.md")


def _run(arguments: argparse.Namespace) -> int:
    from uvsdk.federation import algorithms, disclosure
    from uvsdk.release import disclosure as evaluation

    if arguments.table:
        print(f"{disclosure.table()}\n\n{evaluation.table()}")
        return 0
    for name in algorithms.names():
        found = algorithms.disclosure(name)
        print(f"{name}\n  sent each round: {'; '.join(found.sends)}\n  once: {'; '.join(found.once) or 'nothing'}")
        print(f"  the server learns: {found.server_learns}\n  others learn: {found.others_learn}")
    return 0


COMMAND = Command("algorithms", "list the algorithms and what leaves the device under each", _configure, _run)
