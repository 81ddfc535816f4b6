"""Every test that SECURITY.md names as a proof exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]
_TEXT = (_ROOT / "SECURITY.md").read_text()
_NAMED = sorted(set(re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", _TEXT)))


@pytest.mark.parametrize(("file", "name"), _NAMED, ids=lambda part: part or "file")
def test_a_proof_that_security_names_exists(file: str, name: str) -> None:
    path = _ROOT / file
    assert path.is_file(), f"SECURITY.md names {file}, which does not exist"
    if name:
        found = re.search(rf"^(?:    )?(?:async )?def {name}\(", path.read_text(), re.MULTILINE)
        assert found, f"SECURITY.md names {file}::{name}, which does not exist"


def test_every_threat_names_its_proof() -> None:
    rows = _TEXT.split("## Threats")[1].split("##")[0].strip().splitlines()[2:]
    unproven = [row for row in rows if not re.search(r"`tests/[\w/]+\.py", row)]
    assert not unproven
