"""What leaves the device, as a table made of every algorithm's ``payload.py`` and of nothing else."""

from __future__ import annotations

from uvsdk.federation import algorithms

HEADINGS = ("algorithm", "sent each round", "received each round", "sent once", "the server learns", "others learn")


def table() -> str:
    """A Markdown table, one row per algorithm in the registry.

    >>> table().splitlines()[0]
    '| algorithm | sent each round | received each round | sent once | the server learns | others learn |'
    """
    lines = [f"| {' | '.join(HEADINGS)} |", f"|{'---|' * len(HEADINGS)}"]
    for name in algorithms.names():
        found = algorithms.disclosure(name)
        cells = [f"`{name}`", *("; ".join(part) for part in (found.sends, found.receives, found.once))]
        lines.append(f"| {' | '.join([*cells, found.server_learns, found.others_learn])} |")
    return "\n".join(lines)
