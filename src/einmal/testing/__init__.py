"""Tests for programs that build on einmal: ``targets`` checks a target of your own. Needs pytest."""

import pytest

pytest.register_assert_rewrite("einmal.testing.targets")
