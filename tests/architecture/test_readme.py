"""The README tells the truth: its code runs, its table is the one the payload modules give, its files exist.

``python -m tests.architecture.test_readme`` writes the table anew.
"""

from __future__ import annotations

import re
from pathlib import Path

from uvsdk.federation import disclosure

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
_TABLE = re.compile(r"(<!-- disclosure -->\n).*?(<!-- /disclosure -->)", re.DOTALL)


def with_current_table(text: str) -> str:
    """``text`` with the table between its marks made anew."""
    return _TABLE.sub(lambda found: f"{found[1]}{disclosure.table()}\n{found[2]}", text)


def test_the_table_of_what_leaves_the_device_is_current() -> None:
    text = README.read_text(encoding="utf-8")
    assert _TABLE.search(text)
    assert text == with_current_table(text), "run: python -m tests.architecture.test_readme"


def test_the_code_runs_and_prints_what_a_reader_expects() -> None:
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert blocks
    printed: list[str] = []
    for block in blocks:
        scope: dict[str, object] = {"print": lambda *words: printed.append(" ".join(map(str, words)))}
        exec(compile(block, "README.md", "exec"), scope)
    accepted, impostor = printed[0].split()[0], printed[1]
    assert (accepted, impostor) == ("True", "False")


def test_files_it_links_to_exist() -> None:
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", README.read_text(encoding="utf-8"))
    assert [link for link in links if not (ROOT / link).exists()] == []


if __name__ == "__main__":
    README.write_text(with_current_table(README.read_text(encoding="utf-8")), encoding="utf-8")
