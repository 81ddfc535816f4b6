"""Test files whose packages are not installed are skipped with the reason, where an extra brings those packages."""

from __future__ import annotations

import gc
from collections.abc import Generator
from pathlib import Path

import hypothesis
import pytest

from tests.extras import EXTRAS, lacking

# How long an example takes says something of the machine and its load, nothing of the property.
hypothesis.settings.register_profile("uvsdk", deadline=None)
hypothesis.settings.load_profile("uvsdk")

# Its assertions explain themselves as those of tests do; said here, before any test file imports it.
pytest.register_assert_rewrite("tests.integration.method_run")

# What is imported and collected stays to the end, and the collector would look through all of it again and again.
gc.disable()


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()
    gc.enable()


class Lacking(pytest.File):
    """A test file that cannot be imported here."""

    def collect(self) -> list[pytest.Item]:
        packages = sorted(lacking(self.path))
        extras = " and ".join(sorted({EXTRAS[package] for package in packages}))
        pytest.skip(f"needs {', '.join(packages)} (extra {extras})", allow_module_level=True)


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(
    file_path: Path, parent: pytest.Collector
) -> Generator[None, list[pytest.Collector], list[pytest.Collector]]:
    collectors = yield
    if collectors and file_path.suffix == ".py" and lacking(file_path):
        return [Lacking.from_parent(parent, path=file_path)]
    return collectors
