"""Records of records: what is packed is unpacked, and altered bytes give a record or the one error."""

import contextlib
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from uvsdk.arrays import Array, Float32, Int64
from uvsdk.errors import WireError
from uvsdk.records.codec import pack, unpack

texts = st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=8)
finite = st.floats(allow_nan=False, allow_infinity=False)
singles = arrays(np.float32, array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))


@dataclass(frozen=True, slots=True)
class Leaf:
    name: str
    key: bytes
    values: Float32
    weight: float | None


@dataclass(frozen=True, slots=True)
class Branch:
    first: Leaf
    other: Leaf | None
    counts: Int64
    seal: bytes | None


@dataclass(frozen=True, slots=True)
class Tree:
    branches: tuple[Branch, ...]
    labels: tuple[str, ...]
    named: dict[str, Array]
    loose: tuple[Leaf, ...]
    root: Leaf


leaves = st.builds(Leaf, texts, st.binary(max_size=9), singles, st.none() | finite)
branches = st.builds(
    Branch, leaves, st.none() | leaves, arrays(np.int64, st.integers(0, 3)), st.none() | st.binary(max_size=5)
)
trees = st.builds(
    Tree,
    st.lists(branches, max_size=3).map(tuple),
    st.lists(texts, max_size=3).map(tuple),
    st.dictionaries(texts, singles, max_size=2),
    st.lists(leaves, max_size=2).map(tuple),
    leaves,
)


def same(left: object, right: object) -> bool:
    """Equal in class and value, arrays bit for bit."""
    if isinstance(left, np.ndarray) and isinstance(right, np.ndarray):
        return (left.dtype, left.shape, left.tobytes()) == (right.dtype, right.shape, right.tobytes())
    if type(left) is not type(right):
        return False
    if isinstance(left, dict) and isinstance(right, dict):
        return set(left) == set(right) and all(same(left[key], right[key]) for key in left)
    if isinstance(left, tuple) and isinstance(right, tuple):
        return len(left) == len(right) and all(map(same, left, right))
    names = getattr(left, "__dataclass_fields__", None)
    return left == right if names is None else all(same(getattr(left, name), getattr(right, name)) for name in names)


@given(trees)
def test_what_is_packed_is_unpacked(tree: Tree) -> None:
    again = unpack(Tree, pack(tree))
    assert same(again, tree)
    assert pack(again) == pack(tree)


@given(trees, st.integers(0, 1 << 20), st.integers(1, 255))
def test_a_changed_byte_gives_a_record_or_the_one_error(tree: Tree, place: int, change: int) -> None:
    data = bytearray(pack(tree))
    data[place % len(data)] ^= change
    with contextlib.suppress(WireError):
        unpack(Tree, bytes(data))


@given(trees, st.integers(0, 1 << 20))
def test_a_record_cut_short_is_refused(tree: Tree, place: int) -> None:
    data = pack(tree)
    with pytest.raises(WireError):
        unpack(Tree, data[: place % len(data)])
