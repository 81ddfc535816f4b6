import contextlib
import dataclasses
import json
import struct
from dataclasses import dataclass, field, make_dataclass
from types import GenericAlias
from typing import Any, TypeVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from uvsdk.arrays import Array, Float32, Float64, Int64, UInt8
from uvsdk.errors import WireError
from uvsdk.records.codec import pack, unpack

Scalar = TypeVar("Scalar", bound=np.generic)


@dataclass(frozen=True, slots=True)
class Everything:
    name: str
    count: int
    ratio: float
    flag: bool
    nothing: int | None
    names: tuple[str, ...]
    numbers: tuple[int, ...]
    single: Float32
    double: Float64
    whole: Int64
    octets: UInt8
    either: Float32 | None
    anything: Array
    memory: dict[str, Array] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Empty:
    pass


@dataclass(frozen=True, slots=True)
class Pair:
    left: Float32
    right: int


@dataclass(frozen=True, slots=True)
class Positive:
    value: float

    def __post_init__(self) -> None:
        if self.value <= 0:
            raise ValueError("not positive")


@dataclass(frozen=True, slots=True)
class Leaf:
    key: bytes
    values: Float32


@dataclass(frozen=True, slots=True)
class Nest:
    before: Float32
    leaf: Leaf
    pair: Pair | None
    leaves: tuple[Leaf, ...]
    positives: tuple[Positive, ...]
    seal: bytes | None
    after: Float32


@dataclass(frozen=True, slots=True)
class Chain:
    value: int
    rest: "Chain | None" = None


def nest() -> Nest:
    return Nest(
        before=np.array([1], np.float32),
        leaf=Leaf(b"\0\xff", np.array([2, 3], np.float32)),
        pair=None,
        leaves=(Leaf(b"", np.array([4], np.float32)), Leaf(b"k", np.empty(0, np.float32))),
        positives=(Positive(0.5),),
        seal=None,
        after=np.array([5], np.float32),
    )


def sample() -> Everything:
    return Everything(
        name="ünïcode \U0001f600",
        count=-3,
        ratio=0.1,
        flag=True,
        nothing=None,
        names=("b", "a", ""),
        numbers=(),
        single=np.arange(6, dtype=np.float32).reshape(2, 3),
        double=np.array([np.pi]),
        whole=np.array([2**62, -1]),
        octets=np.empty((0, 4), np.uint8),
        either=None,
        anything=np.array(7, np.int32),
        memory={"z": np.ones(1, np.float32), "a": np.zeros((1, 2))},
    )


def edit(data: bytes, **changes: object) -> bytes:
    """The message with its header's fields replaced, ``...`` removing one."""
    (length,) = struct.unpack("<I", data[4:8])
    header = json.loads(data[8 : 8 + length])
    for key, value in changes.items():
        if value is ...:
            del header["fields"][key]
        else:
            header["fields"][key] = value
    return assemble(json.dumps(header), data[8 + length :])


def assemble(header: str, arrays: bytes = b"") -> bytes:
    encoded = header.encode()
    return b"UVM1" + struct.pack("<I", len(encoded)) + encoded + arrays


def test_everything_comes_back_as_it_was() -> None:
    message = sample()
    again = unpack(Everything, pack(message))
    for name in Everything.__dataclass_fields__:
        before, after = getattr(message, name), getattr(again, name)
        if isinstance(before, np.ndarray):
            assert after.dtype == before.dtype
            np.testing.assert_array_equal(after, before)
        elif name == "memory":
            assert sorted(after) == ["a", "z"]
            np.testing.assert_array_equal(after["a"], np.zeros((1, 2)))
        else:
            assert after == before
            assert type(after) is type(before)


def test_bytes_depend_on_nothing_but_the_message() -> None:
    assert pack(sample()) == pack(sample())
    assert pack(unpack(Everything, pack(sample()))) == pack(sample())


def test_a_message_without_fields() -> None:
    assert unpack(Empty, pack(Empty())) == Empty()


def test_layout_by_hand() -> None:
    # magic, length of the header, header, then 1.0 and -2.0 as little-endian float32
    header = b'{"kind":"Pair","fields":{"left":{"dtype":"<f4","shape":[2]},"right":{"value":5}}}'
    expected = b"UVM1" + struct.pack("<I", len(header)) + header + bytes.fromhex("0000803f000000c0")
    assert pack(Pair(np.array([1, -2], np.float32), 5)) == expected


def test_a_big_endian_or_strided_array_is_sent_little_endian_and_contiguous() -> None:
    wide = np.arange(8, dtype=">f4")[::2]
    again = unpack(Pair, pack(Pair(wide, 0))).left  # type: ignore[arg-type]
    assert again.dtype.str == "<f4"
    np.testing.assert_array_equal(again, [0, 2, 4, 6])


def test_arrays_are_aligned_read_only_copies() -> None:
    data = bytearray(pack(Pair(np.ones(3, np.float32), 0)))
    left = unpack(Pair, memoryview(data)).left
    data[-1] ^= 0xFF
    np.testing.assert_array_equal(left, np.ones(3))
    assert left.flags.aligned
    with pytest.raises(ValueError):
        left[0] = 0


@given(st.binary(max_size=60))
def test_any_bytes_are_refused_with_the_one_error(noise: bytes) -> None:
    for data in (noise, b"UVM1" + noise, assemble("{}", noise)):
        with pytest.raises(WireError):
            unpack(Pair, data)


def test_truncated_at_every_byte() -> None:
    data = pack(sample())
    for end in range(len(data)):
        with pytest.raises(WireError):
            unpack(Everything, data[:end])


def test_too_long() -> None:
    with pytest.raises(WireError, match="too many"):
        unpack(Pair, pack(Pair(np.ones(1, np.float32), 0)) + b"\0")


@given(st.integers(0, 10_000), st.integers(1, 255))
def test_a_changed_byte_gives_a_message_or_the_one_error(place: int, change: int) -> None:
    data = bytearray(pack(sample()))
    data[place % len(data)] ^= change
    with contextlib.suppress(WireError):
        unpack(Everything, bytes(data))


def test_another_class() -> None:
    with pytest.raises(WireError, match="expected a Pair, got a Empty"):
        unpack(Pair, pack(Empty()))


def test_object_arrays_are_neither_sent_nor_read() -> None:
    with pytest.raises(WireError, match="dtype"):
        pack(Pair(np.array([{}], dtype=object), 0))  # type: ignore[arg-type]
    good = pack(Pair(np.ones(2, np.float32), 0))
    for dtype in ("|O", "|O8", "<U4", "<f2", ">f4", "|V4", "O", None, 4, [], {}):
        with pytest.raises(WireError):
            unpack(Pair, edit(good, left={"dtype": dtype, "shape": [2]}))


def test_a_pickle_is_refused() -> None:
    import pickle

    with pytest.raises(WireError, match="magic"):
        unpack(Pair, pickle.dumps({"left": 1}))


def test_another_dtype_than_declared() -> None:
    with pytest.raises(WireError, match="expected an array of float32, got dtype '<f8'"):
        unpack(Pair, pack(Pair(np.ones(2), 0)))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "shape", [[3], [-2], [2.0], [True, 2], ["2"], "2", {}, None, 2, [1 << 41], [1] * 9, [1 << 39] * 2]
)
def test_a_shape_that_does_not_fit(shape: object) -> None:
    with pytest.raises(WireError):
        unpack(Pair, edit(pack(Pair(np.ones(2, np.float32), 0)), left={"dtype": "<f4", "shape": shape}))


@pytest.mark.parametrize("value", [True, 1.0, "1", None, [], {}])
def test_an_int_is_nothing_else(value: object) -> None:
    with pytest.raises(WireError):
        unpack(Pair, edit(pack(Pair(np.ones(1, np.float32), 0)), right={"value": value}))


@pytest.mark.parametrize("value", [0, 1, "true", None])
def test_a_bool_is_nothing_else(value: object) -> None:
    with pytest.raises(WireError):
        unpack(Everything, edit(pack(sample()), flag={"value": value}))


@pytest.mark.parametrize("value", ["ab", ["a", 1], [["a"]], {"a": 1}])
def test_a_tuple_of_str_is_nothing_else(value: object) -> None:
    with pytest.raises(WireError):
        unpack(Everything, edit(pack(sample()), names={"value": value}))


def test_a_whole_number_is_a_float_and_becomes_one() -> None:
    value = unpack(Positive, edit(pack(Positive(1.5)), value={"value": 2})).value
    assert value == 2.0
    assert type(value) is float


def test_numbers_that_are_not_finite() -> None:
    with pytest.raises(WireError):
        pack(Positive(float("nan")))
    for token in ("NaN", "Infinity", "-Infinity", "1e999", "1" + "0" * 400):
        with pytest.raises(WireError):
            unpack(Positive, assemble(f'{{"kind":"Positive","fields":{{"value":{{"value":{token}}}}}}}'))


def test_the_class_itself_may_refuse() -> None:
    with pytest.raises(WireError, match="not positive"):
        unpack(Positive, edit(pack(Positive(1.0)), value={"value": -1.0}))


def test_missing_extra_and_repeated_fields() -> None:
    good = pack(Pair(np.ones(1, np.float32), 0))
    with pytest.raises(WireError):
        unpack(Pair, edit(good, right=...))
    with pytest.raises(WireError):
        unpack(Pair, edit(good, other={"value": 1}))
    with pytest.raises(WireError, match="twice"):
        unpack(Positive, assemble('{"kind":"Positive","fields":{"value":{"value":1},"value":{"value":2}}}'))
    with pytest.raises(WireError):
        unpack(Pair, edit(good, right={"value": 0, "note": 1}))


def test_an_array_where_a_value_belongs_and_the_reverse() -> None:
    good = pack(Pair(np.ones(1, np.float32), 0))
    with pytest.raises(WireError):
        unpack(Pair, edit(good, right={"dtype": "<f4", "shape": [1]}, left={"value": 0}))
    with pytest.raises(WireError):
        unpack(Pair, edit(good, left={"arrays": {}}))


@pytest.mark.parametrize(
    "header", ["", "[]", "null", "1", '"x"', "{", '{"kind":"Pair"}', '{"kind":"Pair","fields":[]}']
)
def test_headers_that_are_no_header(header: str) -> None:
    with pytest.raises(WireError):
        unpack(Pair, assemble(header))


def test_a_deeply_nested_header_and_a_length_beyond_the_message() -> None:
    with pytest.raises(WireError):
        unpack(Pair, assemble("[" * 100_000))
    with pytest.raises(WireError, match="cannot hold"):
        unpack(Pair, b"UVM1" + struct.pack("<I", 2**32 - 1) + b"{}")


def test_what_json_has_no_word_for_is_not_sent() -> None:
    with pytest.raises(WireError):
        pack(Pair(np.ones(1, np.float32), {1, 2}))  # type: ignore[arg-type]
    with pytest.raises(WireError):
        pack(Pair(np.ones(1, np.float32), "\ud800"))  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Bare:
    some: np.ndarray
    several: dict[str, Float32]


def test_an_array_is_known_by_every_name_that_numpy_has_given_it() -> None:
    # Up to numpy 2.4 NDArray[T] is np.ndarray[..., np.dtype[T]] itself; from 2.5 on a named alias that stands for it.
    class Alias:
        __value__ = np.ndarray[tuple[int, ...], np.dtype[Scalar]]  # type: ignore[valid-type]

        def __class_getitem__(cls, item: object) -> object:
            return GenericAlias(cls, item if isinstance(item, tuple) else (item,))

    for spelled in (np.ndarray[Any, np.dtype[np.float32]], Alias[np.float32], Float32, Alias[np.float32] | None):
        kind = make_dataclass("Pair", [("left", spelled), ("right", int)], frozen=True)
        again = unpack(kind, pack(kind(np.array([1.5], np.float32), 3)))  # type: ignore[arg-type]
        assert again.left.tolist() == [1.5]
        with pytest.raises(WireError, match="expected an array of float32, got dtype '<f8'"):
            unpack(kind, pack(Pair(np.ones(2), 0)))  # type: ignore[arg-type]


def test_the_dtype_of_every_named_array_is_the_declared_one() -> None:
    good = Bare(np.ones(1, np.int64), {"a": np.ones(1, np.float32)})
    assert unpack(Bare, pack(good)).several["a"].tolist() == [1.0]
    with pytest.raises(WireError, match="float32, got dtype '<i8'"):
        unpack(Bare, pack(Bare(np.ones(1), {"a": np.ones(1, np.int64)})))  # type: ignore[dict-item]


@pytest.mark.parametrize(
    "declared", [set, list[str], tuple[str, int], dict[str, int], dict[int, Array], bytearray, complex]
)
def test_what_would_not_be_read_is_not_written(declared: object) -> None:
    kind = make_dataclass("Odd", [("value", declared)], frozen=True)
    with pytest.raises(WireError, match=r"Odd\.value is declared as"):
        pack(kind(()))
    with pytest.raises(WireError, match=r"Odd\.value is declared as"):
        unpack(kind, assemble('{"kind":"Odd","fields":{"value":{"value":[]}}}'))


def test_a_record_in_a_record_comes_back_as_it_was() -> None:
    again = unpack(Nest, pack(nest()))
    assert again.leaf.key == b"\0\xff"
    assert type(again.leaf.key) is bytes
    assert again.leaf.values.tolist() == [2, 3]
    assert again.pair is None
    assert [(leaf.key, leaf.values.tolist()) for leaf in again.leaves] == [(b"", [4]), (b"k", [])]
    assert again.positives == (Positive(0.5),)
    assert again.seal is None
    assert (again.before.tolist(), again.after.tolist()) == ([1], [5])
    assert pack(again) == pack(nest())


def test_layout_of_a_nest_by_hand() -> None:
    # The arrays stand in the order of the fields, those of a record in its place: 1, key, 2, 3, 4, "k", "seal", 5.
    octets = '{"dtype":"|u1","shape":[%d]}'
    single = '{"dtype":"<f4","shape":[%d]}'
    leaf = '{"kind":"Leaf","fields":{"key":' + octets + ',"values":' + single + "}}"
    header = (
        f'{{"kind":"Nest","fields":{{"before":{single % 1},"leaf":{leaf % (2, 2)},"pair":{{"value":null}},'
        f'"leaves":{{"records":[{leaf % (0, 1)},{leaf % (1, 0)}]}},'
        '"positives":{"records":[{"kind":"Positive","fields":{"value":{"value":0.5}}}]},'
        f'"seal":{octets % 4},"after":{single % 1}}}}}'
    )
    arrays = [b"\x00\x00\x80?", b"\0\xff", b"\0\0\0@\0\0@@", b"\0\0\x80@", b"k", b"seal", b"\0\0\xa0@"]
    message = dataclasses.replace(nest(), seal=b"seal")
    assert pack(message) == assemble(header, b"".join(arrays))


def test_bytes_are_written_as_an_array_of_octets_was() -> None:
    # What once packed bytes as uint8 (n,) may declare them as bytes, and what was written then is still read.
    kind = make_dataclass("Octets", [("body", bytes)], frozen=True)
    former = make_dataclass("Octets", [("body", UInt8)], frozen=True)
    data = pack(former(np.frombuffer(b"abc", np.uint8)))
    assert pack(kind(b"abc")) == data
    assert unpack(kind, data).body == b"abc"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "entry",
    [
        {"dtype": "|u1", "shape": [1, 1]},
        {"dtype": "|u1", "shape": []},
        {"dtype": "|u1", "shape": "1"},
        {"dtype": "|u1", "shape": [2]},
        {"dtype": "<f4", "shape": [0]},
        {"dtype": "|u1"},
        {"value": "a"},
        {"value": None},
        {"value": [97]},
    ],
)
def test_bytes_are_nothing_else(entry: object) -> None:
    good = pack(Leaf(b"a", np.empty(0, np.float32)))
    with pytest.raises(WireError):
        unpack(Leaf, edit(good, key=entry))


POSITIVE = {"kind": "Positive", "fields": {"value": {"value": 1.0}}}


@pytest.mark.parametrize(
    "entry",
    [
        {"value": None},
        {"value": 1},
        {"records": [POSITIVE]},
        POSITIVE,
        {"kind": "Chain", "fields": {}},
        {"kind": "Chain", "fields": []},
        {"kind": "Chain", "fields": {"value": {"value": 1}}},
        {"kind": "Chain", "fields": {"value": {"value": "1"}, "rest": {"value": None}}},
        {"kind": "Chain", "fields": {"value": {"value": 1}, "rest": {"value": None}, "more": {"value": 1}}},
        {"kind": "Chain", "fields": {"value": {"value": 1}, "rest": {"value": None}}, "note": 1},
        {"kind": "Chain"},
        [],
        None,
    ],
)
def test_a_record_is_nothing_else(entry: object) -> None:
    kind = make_dataclass("Holder", [("chain", Chain)], frozen=True)
    with pytest.raises(WireError):
        unpack(kind, edit(pack(kind(Chain(1))), chain=entry))


@pytest.mark.parametrize(
    "entry",
    [
        {"value": []},
        {"value": None},
        {"records": {}},
        {"records": ""},
        {"records": None},
        {"records": [None]},
        {"records": [[]]},
        {"records": [{"value": 1.0}]},
        {"records": [{"records": []}]},
        {"records": [POSITIVE, {"kind": "Chain", "fields": {}}]},
        {"records": [{**POSITIVE, "note": 1}]},
        {"records": [POSITIVE], "value": None},
        POSITIVE,
    ],
)
def test_a_tuple_of_records_is_nothing_else(entry: object) -> None:
    with pytest.raises(WireError):
        unpack(Nest, edit(pack(nest()), positives=entry))


def test_a_nested_record_may_refuse_and_names_no_field_twice() -> None:
    bad = {"records": [{"kind": "Positive", "fields": {"value": {"value": -1.0}}}]}
    with pytest.raises(WireError, match="not positive"):
        unpack(Nest, edit(pack(nest()), positives=bad))
    twice = pack(Chain(1, Chain(2))).replace(b'"value":{"value":2}', b'"value":{"value":2},"value":{"value":2}')
    (length,) = struct.unpack("<I", twice[4:8])
    with pytest.raises(WireError, match="twice"):
        unpack(Chain, twice[:4] + struct.pack("<I", length + len(b',"value":{"value":2}')) + twice[8:])


def test_a_nest_truncated_at_every_byte_or_with_one_too_many() -> None:
    data = pack(nest())
    for end in range(len(data)):
        with pytest.raises(WireError):
            unpack(Nest, data[:end])
    with pytest.raises(WireError, match="too many"):
        unpack(Nest, data + b"\0")


def test_records_nested_too_deeply_are_neither_read_nor_written() -> None:
    deep = '{"kind":"Chain","fields":{"value":{"value":1},"rest":'
    with pytest.raises(WireError):
        unpack(Chain, assemble(deep * 100_000 + '{"value":null}' + "}}" * 100_000))
    chain = Chain(0)
    for value in range(100_000):
        chain = Chain(value, chain)
    with pytest.raises(WireError):
        pack(chain)
    while chain.rest is not None:  # taken apart from outside: freeing a chain recurses too
        chain = chain.rest


def test_another_record_than_declared_is_not_written() -> None:
    @dataclass(frozen=True, slots=True)
    class Longer(Leaf):
        more: int = 0

    for message in (
        dataclasses.replace(nest(), leaf=Longer(b"", np.empty(0, np.float32))),
        dataclasses.replace(nest(), leaves=(Positive(1.0),)),
        dataclasses.replace(nest(), leaves=("a",)),
        dataclasses.replace(nest(), pair=Positive(1.0)),
        Pair(np.empty(0, np.float32), Positive(1.0)),  # type: ignore[arg-type]
    ):
        with pytest.raises(WireError):
            pack(message)


def test_no_declaration_leaves_the_choice_to_the_bytes() -> None:
    for declared in (Pair | Positive, tuple[Pair, ...] | tuple[Positive, ...], bytes | UInt8):
        kind = make_dataclass("Odd", [("value", declared)], frozen=True)
        with pytest.raises(WireError, match=r"Odd\.value is declared as"):
            pack(kind(b""))


def test_what_a_nested_record_would_not_read_is_not_written() -> None:
    inner = make_dataclass("Inner", [("value", set)], frozen=True)
    outer = make_dataclass("Outer", [("inner", inner)], frozen=True)
    with pytest.raises(WireError, match=r"Inner\.value is declared as"):
        pack(outer(inner(set())))


@pytest.mark.parametrize("arrays", [[], "", None, 1, ["a"], {"a": None}, {"a": {"dtype": "<f4"}}])
def test_named_arrays_are_nothing_else(arrays: object) -> None:
    with pytest.raises(WireError):
        unpack(Everything, edit(pack(sample()), memory={"arrays": arrays}))
