"""What leaves the device, as Markdown made of every algorithm's ``payload.py`` and of nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from uvsdk.federation import algorithms

SENT = ("algorithm", "sends each round", "receives each round", "once")
LEARNED = ("algorithm", "the server learns", "others learn")


def table() -> str:
    """What all have in common in a sentence, then two tables of one row for each algorithm in the registry.

    >>> [line.split(" | ")[1] for line in table().splitlines() if line.startswith("| algorithm")]
    ['sends each round', 'the server learns']
    """
    found = {name: algorithms.disclosure(name) for name in algorithms.names()}
    sends = _common([item.sends for item in found.values()])
    receives = _common([item.receives for item in found.values()])
    sent, learned = [], []
    for name, item in found.items():
        own = (_without(item.sends, sends), _without(item.receives, receives), item.once)
        sent.append([f"`{name}`", *("<br>".join(part) or "-" for part in own)])
        learned.append([f"`{name}`", item.server_learns, item.others_learn])
    parts = [markdown(SENT, sent), markdown(LEARNED, learned)]
    if kept := [name for name in found if not algorithms.server(name).verifies_on_server]:
        parts.append(f"Under {names(kept)} no template may leave the device, so only the device verifies.")
    if named := [name for name in found if algorithms.server(name).restricted(algorithms.settings(name, {}))]:
        parts.append(f"A server runs {names(named)} only where its operator names it: `uvsdk serve --allow NAME`.")
    if sends or receives:
        parts.insert(0, f"Each round every device sends {_words(sends)}, and receives {_words(receives)}. Beside that:")
    return "\n\n".join(parts)


def _common(lists: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """What stands in each of them, in the order of the first."""
    return tuple(item for item in lists[0] if all(item in other for other in lists))


def _without(items: Iterable[str], left_out: Iterable[str]) -> tuple[str, ...]:
    return tuple(item for item in items if item not in left_out)


def names(found: Sequence[str]) -> str:
    """Names as they stand in a sentence."""
    return " and ".join(f"`{name}`" for name in found)


def _words(items: Sequence[str]) -> str:
    return " and ".join(items) or "nothing"


def markdown(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of that many columns."""
    lines = [f"| {' | '.join(headings)} |", f"|{'---|' * len(headings)}"]
    return "\n".join([*lines, *(f"| {' | '.join(cells)} |" for cells in rows)])
