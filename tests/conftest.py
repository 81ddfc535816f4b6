"""Test files whose packages are not installed are skipped with the reason, where an extra brings those packages."""

from __future__ import annotations

import gc
from collections.abc import Generator
from pathlib import Path

import hypothesis
import pytest

from tests.extras import EXTRAS, lacking

TESTS = Path(__file__).parent

# How long an example takes says something of the machine and its load, nothing of the property.
hypothesis.settings.register_profile("uvsdk", deadline=None)
hypothesis.settings.load_profile("uvsdk")

# Its assertions explain themselves as those of tests do; said here, before any test file imports it.
pytest.register_assert_rewrite("tests.integration.method_run")

# What is imported and collected stays to the end, and the collector would look through all of it again and again.
gc.disable()


SLOWEST = (
    "integration/test_quick_start.py",
    "integration/test_life.py",
    "contract/test_a_new_method.py",
    "unit/test_export.py",
    "integration/test_evaluations.py",
    "integration/test_methods_odd.py",
    "integration/test_methods_even.py",
    "behaviour/test_federations.py",
    "integration/test_partial.py",
    "integration/test_server_attempts.py",
    "integration/test_server_rounds.py",
    "unit/test_face_field.py",
    "integration/test_server_deletion.py",
    "behaviour/test_probes.py",
    "integration/test_server_freshness.py",
    "integration/test_device_people.py",
    "integration/test_kill.py",
    "integration/test_device_kill.py",
    "unit/test_ray_backend.py",
)
"""Files of tests that take long, the longest first. ``make test`` gives each of its two workers one file after another,
and the run is over when the last one is: what takes a minute must not begin last."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    place = {TESTS / name: number for number, name in enumerate(SLOWEST)}
    items.sort(key=lambda item: place.get(item.path, len(place)))


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
