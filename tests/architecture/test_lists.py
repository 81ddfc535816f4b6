"""``tests/README.md`` tells the truth: every test it names exists, and its matrix has every cell."""

from __future__ import annotations

import ast
import functools
import itertools
import re
from pathlib import Path

from tests.conftest import SLOWEST

TESTS = Path(__file__).resolve().parents[1]
README = TESTS / "README.md"
METHODS = ("FedAwS", "FedALC", "FedALC-fixed", "FedMetric", "FedSS", "FedUV")
_NAMED = re.compile(r"`([\w/]+\.py)(?:::(\w+))?`")


@functools.cache
def defined(path: Path) -> frozenset[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def rows(heading: str) -> list[list[str]]:
    """The cells of the table under ``heading``."""
    section = README.read_text(encoding="utf-8").split(f"## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_the_files_that_begin_first_exist() -> None:
    assert [name for name in SLOWEST if not (TESTS / name).is_file()] == []


def test_every_test_that_is_named_exists() -> None:
    named = _NAMED.findall(README.read_text(encoding="utf-8"))
    assert len(named) > 80
    missing = []
    for file, test in named:
        path = TESTS / file.removeprefix("tests/")
        if not path.is_file() or (test and test not in defined(path)):
            missing.append(f"{file}::{test}")
    assert missing == []


def test_the_ten_items_have_tests() -> None:
    listed = rows("What the papers prove")
    assert [row[0] for row in listed] == [str(item) for item in range(1, 11)]
    assert all(_NAMED.search(row[2]) for row in listed)


def test_every_case_from_the_field_has_tests() -> None:
    listed = rows("Cases seen in the field")
    assert len(listed) >= 13
    assert [row[0] for row in listed if not (row[1] and _NAMED.search(row[2]))] == []


def test_the_matrix_has_every_cell_and_tests_where_there_is_a_case() -> None:
    listed = rows("Degenerate cases")
    cases = list(dict.fromkeys(row[0] for row in listed))
    assert len(cases) == 11
    assert [(row[0], row[1]) for row in listed] == list(itertools.product(cases, METHODS))
    without = {(row[0], row[1]) for row in listed if not _NAMED.search(row[2])}
    assert without == {
        ("k >= C (m >= n - P)", "FedUV"),
        ("antipodal pair", "FedUV"),
        *(("no proxy, no labels", method) for method in ("FedAwS", "FedSS", "FedUV")),
    }
