"""States as they were packed before records nested are read, and training goes on with them.

``flat_states/`` was written by the last version that packed them so, of three users of ``tests/contract/party.py``:
after one round, with kept lists of neighbours (``fedaws_approximate``) and before the start (``fedalc_waiting``).
"""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from uvsdk.arrays import Array
from uvsdk.federation import algorithms
from uvsdk.records.codec import pack, unpack
from uvsdk_server import flat_states

FILES = sorted((Path(__file__).parent / "flat_states").glob("*.bin"))


def flat(packed: bytes) -> dict[str, Any]:
    """The fields, read by hand: arrays lie one after another behind the header."""
    place = 8 + int.from_bytes(packed[4:8], "little")
    found: dict[str, Any] = {}
    for name, entry in json.loads(packed[8:place])["fields"].items():
        if "value" in entry:
            found[name] = tuple(entry["value"]) if isinstance(entry["value"], list) else entry["value"]
            continue
        numbers: Array = np.frombuffer(packed, entry["dtype"], math.prod(entry["shape"]), place)
        found[name], place = numbers.reshape(entry["shape"]), place + numbers.nbytes
    assert place == len(packed)
    return found


def leaves(value: object) -> list[str]:
    """What a record holds, however it nests."""
    if dataclasses.is_dataclass(value):
        return [leaf for field in dataclasses.fields(value) for leaf in leaves(getattr(value, field.name))]
    if isinstance(value, np.ndarray):
        return [f"{value.dtype} {value.shape} {value.tobytes()!r}"]
    return [] if value is None else [repr(value)]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_flat_state_is_read(file: Path) -> None:
    packed = file.read_bytes()
    name = file.stem.removesuffix("_approximate").removesuffix("_waiting")
    half = algorithms.server(name)
    state = unpack(half.state, flat_states.nest(packed))
    fields = flat(packed)
    if file.stem == "fedaws":  # of lists that it does not have
        assert (len(fields["members"]), len(fields["searched"]), fields["looks"]) == (0, 0, 0)
        fields = {key: fields[key] for key in list(fields)[:8]}
    assert sorted(leaves(state)) == sorted(leaf for value in fields.values() for leaf in leaves(value))
    assert half.users(state) == ("a", "b", "c")
    settings = algorithms.settings(name, {})
    later = half.step(half.start(state, settings, np.random.default_rng(0)), (), settings, np.random.default_rng(0))
    assert len(half.class_matrix(later)[0]) == 3


def test_todays_states_are_left_alone() -> None:
    for name in algorithms.names():
        half = algorithms.server(name)
        packed = pack(half.empty(255, algorithms.settings(name, {})))
        assert flat_states.nest(packed) == packed
