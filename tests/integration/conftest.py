"""Assertions of shared modules explain themselves as those of tests do."""

import pytest

pytest.register_assert_rewrite("tests.integration.method_run")
