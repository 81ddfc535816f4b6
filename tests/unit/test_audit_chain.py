"""The chain of the audit log: what was changed, cut or put in between shows."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from uvsdk.errors import StoreError
from uvsdk_server.audit_log import SignedHead, covers, exported, verify_export
from uvsdk_server.store.audit import GENESIS, Entry, Head, by_token, chained, verify_chain

KEY = Ed25519PrivateKey.from_private_bytes(bytes(32))
FIELDS = {
    "number": 9,
    "at_ms": 1,
    "actor": "command",
    "action": "user-left",
    "subject": "f" * 32,
    "detail": {"token": "other"},
    "digest": "e" * 64,
}


def log(length: int) -> list[Entry]:
    entries: list[Entry] = []
    for number in range(1, length + 1):
        detail = {"token": f"{number:012x}", "expires_ms": None, "uses": number}
        new = Entry(number, 1000 * number, by_token("ab"), "token-created", "", detail, "")
        entries.append(chained(new, entries[-1].digest if entries else GENESIS))
    return entries


def signed(entries: list[Entry]) -> SignedHead:
    return SignedHead.of("clinic", Head(len(entries), entries[-1].digest if entries else GENESIS), KEY)


def test_a_digest_by_hand() -> None:
    entry = chained(Entry(1, 1500, "server", "server-started", "", {"version": "0.1"}, ""), GENESIS)
    text = (
        "uvsdk audit/1\n" + "0" * 64 + "\n"
        '{"action":"server-started","actor":"server","at_ms":1500,"detail":{"version":"0.1"},"number":1,"subject":""}'
    )
    assert entry.digest == hashlib.sha256(text.encode()).hexdigest()


def test_a_whole_log_is_followed_to_its_head() -> None:
    entries = log(5)
    assert verify_chain(entries) == Head(5, entries[-1].digest)
    assert verify_chain(entries[2:], Head(2, entries[1].digest)) == Head(5, entries[-1].digest)
    assert verify_chain([]) == Head()


@given(st.integers(0, 4), st.sampled_from(sorted(FIELDS)))
def test_a_changed_field_shows(index: int, name: str) -> None:
    entries = log(5)
    entries[index] = replace(entries[index], **{name: FIELDS[name]})
    with pytest.raises(StoreError, match=f"entry {index + 1} of"):
        verify_chain(entries)


@given(st.integers(0, 3))
def test_a_removed_or_doubled_entry_shows(index: int) -> None:
    entries = log(5)
    with pytest.raises(StoreError, match="missing"):
        verify_chain(entries[:index] + entries[index + 1 :])
    with pytest.raises(StoreError):
        verify_chain([*entries[: index + 1], *entries[index:]])


def test_a_log_that_is_written_anew_from_somewhere_does_not_go_on_from_a_kept_head() -> None:
    entries = log(5)
    kept = signed(entries[:3])
    covers(entries, kept)
    covers(entries, signed([]))
    other = replace(entries[1], actor="command")
    forged = [entries[0]]
    for entry in (other, *entries[2:]):
        forged.append(chained(entry, forged[-1].digest))
    verify_chain(forged)  # whole in itself
    with pytest.raises(StoreError, match="kept at entry 3"):
        covers(forged, kept)
    with pytest.raises(StoreError, match="kept at entry 3"):
        covers(entries[:2], kept)


@pytest.mark.parametrize("length", [0, 1, 4])
def test_an_export_comes_back(length: int) -> None:
    entries = log(length)
    text = exported(entries, signed(entries))
    read, found = verify_export(text)
    assert (found.deployment, found.head.number) == ("clinic", length)
    assert read == entries
    assert all(json.loads(line) for line in text.splitlines())


def test_what_is_no_export(subtests: pytest.Subtests) -> None:
    entries = log(3)
    whole = exported(entries, signed(entries))
    lines = whole.splitlines()
    cut = "\n".join([*lines[:2], lines[-1]])
    other = replace(signed(entries), signature=bytes(64))
    cases = {
        "": "no whole export",
        "nonsense": "no whole export",
        "[]\n{}": "no whole export",
        whole[: len(whole) // 2]: "no whole export",
        "\n".join(lines[:-1]): "no whole export",
        cut: "it was cut",
        exported(entries, other): "not signed",
        whole.replace("token-created", "token-revoked", 1): "entry 1",
        whole.replace('"at_ms":2000', '"at_ms":"2000"'): "no whole export",
    }
    for text, match in cases.items():
        with subtests.test(match, text=text[:20]), pytest.raises(StoreError, match=match):
            verify_export(text)
