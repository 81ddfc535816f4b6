"""Which words of an algorithm's ``DISCLOSURE`` stand for which field of its messages.

Repeated here on purpose: whoever adds a field to a message of an algorithm below has to say here, as well as in the
disclosure, what a reader is told of it. ``None`` is for a field that is about no person: a length, a count, a label
space that is the same for all. A field of an algorithm that is not listed here is named in the disclosure as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

Words = Mapping[str, str | None]


@dataclass(frozen=True)
class Declared:
    """Field -> words, for each of an algorithm's messages."""

    payload: Words = field(default_factory=dict)
    task: Words = field(default_factory=dict)
    invitation: Words = field(default_factory=dict)
    request: Words = field(default_factory=dict)


_OWN_VECTOR = Declared(payload={"vector": "own class vector"}, task={"vector": "own class vector"})
_COLUMNS = {"classes": None, "own": None, "label_space": None}

DECLARED: Mapping[str, Declared] = {
    "fedaws": _OWN_VECTOR,
    "positive_only": _OWN_VECTOR,
    "fedalc": _OWN_VECTOR,
    "fixed": Declared(task={"vector": "own class vector"}),
    "fedalc_fixed": Declared(task={"vector": "own class vector"}, request={"held": "hash of the vector it was given"}),
    "fedmetric": Declared(
        payload={"centre": "its centre moved by a secret offset", "margin": "its radius"},
        task={"centres": "proxies of others", "margins": "proxies of others", "publish": None},
    ),
    "fedss": Declared(
        payload={"classes": "which classes", "deltas": "the change of each of their class vectors"},
        task={"vectors": "those of the classes it asked for", **_COLUMNS},
        invitation={"classes": "ids of all classes", "own": "the own class vector", "size": None},
        request={"classes": "which classes it wants"},
    ),
    "softmax": Declared(
        payload={"classes": None, "deltas": "the change of every class vector"},
        task={"vectors": "class vector", **_COLUMNS},
    ),
    "feduv": Declared(task={"number": "own number", "code_length": None, "message_bits": None}),
}

ONCE: Mapping[str, str] = {
    "mean": "mean of the enrolment embeddings",
    "instances": "hash of each enrolment sample",
    "embedded-instances": "hash of each enrolment sample",
    "person": "hash of the person",
}
"""What an admission can be asked to hold, as a disclosure calls it."""
