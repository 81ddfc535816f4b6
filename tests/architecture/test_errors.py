"""``docs/errors.md`` tells the truth: it has every error and every problem kind, and messages that are really raised.

``python -m tests.architecture.test_errors`` writes the messages anew.
"""

from __future__ import annotations

import ast
import inspect
import re
import tempfile
from pathlib import Path

import pytest

from tests import documented_errors
from uvsdk import errors
from uvsdk.rest.answers import response
from uvsdk.rest.problems import KINDS, STATUS, Problem
from uvsdk_server.envelopes import _REFUSALS

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = ROOT / "docs" / "errors.md"
_SECTION = re.compile(r"^### `(\w+)`\n(.*?)(?=^##|\Z)", re.DOTALL | re.MULTILINE)
_BLOCK = re.compile(r"```text\n(.*?)```", re.DOTALL)

# What Starlette answers by itself, named after the status's phrase.
_BY_THE_FRAMEWORK = {"not-found": {"404"}, "method-not-allowed": {"405"}}


def classes() -> dict[str, type[errors.UvsdkError]]:
    found = inspect.getmembers(errors, lambda item: inspect.isclass(item) and issubclass(item, errors.UvsdkError))
    return {name: kind for name, kind in found if kind is not errors.UvsdkError}


def sections() -> dict[str, str]:
    return dict(_SECTION.findall(DOCUMENT.read_text(encoding="utf-8")))


def table() -> dict[str, list[str]]:
    """Kind -> the other cells of its row."""
    lines = DOCUMENT.read_text(encoding="utf-8").split("## Problem documents")[1].splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines if line.startswith("| `")]
    return {row[0].strip("` |"): row[1:] for row in cells}


def raised(folder: str) -> set[str]:
    """Every kind of a ``Problem(kind, ...)`` that is written out below a folder."""
    found = set[str]()
    for path in (ROOT / folder).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Problem":
                found |= {str(item.value) for item in node.args[:1] if isinstance(item, ast.Constant)}
    return found


def of_samples() -> dict[str, set[str]]:
    """The kinds of :class:`SampleError` and all below it, as both answer them."""
    kinds = [kind for kind in classes().values() if issubclass(kind, errors.SampleError)]
    found: dict[str, set[str]] = {}
    for kind in kinds:
        error = kind("words", {}) if kind is errors.LowQualityError else kind("words")  # type: ignore[call-arg]
        problem, answer = Problem.of(error, "server"), Problem.of(error, "agent")
        assert problem is not None
        assert answer is not None
        assert answer.document() == problem.document()
        assert f'"type":"urn:uvsdk:problem:{problem.kind}"'.encode() in response(problem).body
        found[problem.kind] = {str(problem.status)}
    return found


def kinds() -> tuple[dict[str, set[str]], dict[str, set[str]]]:
    """What the server and the agent may answer: kind -> statuses."""
    server = raised("server/uvsdk_server") | {kind for kind, _ in _REFUSALS.values()} | set(KINDS["server"].values())
    agent = raised("device/uvsdk_device") | set(KINDS["agent"].values())
    samples = of_samples()
    assert server | agent <= set(STATUS)
    both = samples | _BY_THE_FRAMEWORK
    server_has, agent_has = ({kind: {str(STATUS[kind])} for kind in side} | both for side in (server, agent))
    return server_has, agent_has


def test_every_class_has_a_section_and_every_section_a_class() -> None:
    assert set(sections()) == set(classes())


def test_every_class_that_is_raised_has_a_message() -> None:
    without = {name for name, text in sections().items() if not _BLOCK.search(text)}
    assert without == {"AttemptsError", "FederationError", "TemplateError", "WeightsError"}
    never_by_function = set(classes().values()) - set(documented_errors.RAISED)
    assert {kind.__name__ for kind in never_by_function} == without | {
        "ChecksumError",
        "TrainingUnavailableError",
        "UnapprovedConfigError",
    }


@pytest.mark.parametrize("kind", documented_errors.RAISED, ids=lambda kind: kind.__name__)
def test_the_message_is_the_one_that_is_raised(kind: type[errors.UvsdkError], tmp_path: Path) -> None:
    block = _BLOCK.search(sections()[kind.__name__])
    assert block is not None
    assert block[1].strip() == documented_errors.message(kind, tmp_path), (
        "run: python -m tests.architecture.test_errors"
    )


def test_every_problem_kind_is_listed_with_its_status_and_who_answers_it() -> None:
    server, agent = kinds()
    listed = table()
    assert set(listed) == set(server) | set(agent)
    for kind, (status, who, example, remedy, *rest) in listed.items():
        assert not rest, kind
        assert {status} == server.get(kind, set()) | agent.get(kind, set()), kind
        expected = "both" if kind in server and kind in agent else "server" if kind in server else "agent"
        assert who == expected, kind
        assert example, kind
        assert remedy, kind
        assert re.fullmatch("[a-z]+(-[a-z]+)*", kind)


def test_examples_of_details_are_in_the_source_or_in_a_section() -> None:
    """Every example's longest run of plain words stands in the code (joined literals) or among the raised messages."""
    folders = (ROOT / "server", ROOT / "device", ROOT / "uvsdk" / "privacy")
    texts = ["".join(literals(path)) for folder in folders for path in folder.rglob("*.py")]
    texts += [*sections().values(), "Method Not Allowed", "Not Found", "There was an error parsing the body"]
    for kind, (_, _, example, *_) in table().items():
        words = max(re.split(r"[\d(]+|fedmetric|verify or operator|refused: ", example), key=len).strip()
        assert any(words in text for text in texts), (kind, words)


def literals(path: Path) -> list[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]


def test_links_of_the_document_exist() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        assert (DOCUMENT.parent / target).exists(), target
    anchors = {heading.lower().replace("`", "").replace(" ", "-") for heading in re.findall(r"^#+ (.*)$", text, re.M)}
    assert set(re.findall(r"\]\(#([^)]+)\)", text)) <= anchors


def with_current_messages(text: str) -> str:
    """``text`` with every message that has a function raised anew."""

    def renewed(section: re.Match[str]) -> str:
        kind = getattr(errors, section[1])
        if kind not in documented_errors.RAISED:
            return section[0]
        with tempfile.TemporaryDirectory() as folder:
            words = documented_errors.message(kind, Path(folder))
        return _BLOCK.sub(lambda _: f"```text\n{words}\n```", section[0], count=1)

    return _SECTION.sub(renewed, text)


if __name__ == "__main__":
    DOCUMENT.write_text(with_current_messages(DOCUMENT.read_text(encoding="utf-8")), encoding="utf-8")
