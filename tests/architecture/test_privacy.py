"""``docs/privacy.md`` tells the truth: its tables are those that the payload modules give.

``python -m tests.architecture.test_privacy`` writes them anew: nobody edits them for a new method.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.contract.test_a_new_method import NAME, write_method
from uvsdk.federation import algorithms, disclosure
from uvsdk.release import disclosure as evaluation

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = ROOT / "docs" / "privacy.md"
_TABLE = re.compile(r"(<!-- (disclosure|evaluation) -->\n).*?(<!-- /\2 -->)", re.DOTALL)

WITH_ANOTHER = """
import sys
from uvsdk.federation import algorithms, disclosure
algorithms.__path__.append(sys.argv[1])
print(disclosure.table())
"""


def with_current_table(text: str) -> str:
    """``text`` with the tables between their marks made anew."""
    tables = {"disclosure": disclosure.table, "evaluation": evaluation.table}
    return _TABLE.sub(lambda found: f"{found[1]}{tables[found[2]]()}\n{found[3]}", text)


def test_the_table_of_what_leaves_the_device_is_current() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    assert [found[2] for found in _TABLE.finditer(text)] == ["disclosure", "evaluation"]
    assert text == with_current_table(text), "run: python -m tests.architecture.test_privacy"


def test_a_new_methods_folder_is_enough_for_its_rows(tmp_path: Path) -> None:
    write_method(tmp_path)
    made = subprocess.run(
        [sys.executable, "-c", WITH_ANOTHER, str(tmp_path)], capture_output=True, text=True, check=True, cwd=ROOT
    ).stdout
    rows = [line.split(" | ")[0].strip("| `") for line in made.splitlines() if line.startswith("| `")]
    assert rows == sorted([*algorithms.names(), NAME]) * 2


if __name__ == "__main__":
    DOCUMENT.write_text(with_current_table(DOCUMENT.read_text(encoding="utf-8")), encoding="utf-8")
