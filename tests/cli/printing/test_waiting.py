"""Claims about the output of a command while it waits."""

from __future__ import annotations

import re
import sys
import threading
import time

import pytest

from einmal.cli.printing import waiting
from tests.suite.patience import patient


def test_a_wait_is_named_at_once_and_again_while_it_lasts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(waiting, "_EVERY_S", 0.01)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    said = ""
    with waiting.waiting("starting Spark"):
        assert capsys.readouterr().err == "starting Spark\n"
        deadline = time.monotonic() + patient(20)
        while not re.search(r"^starting Spark: \d+ s\n", said):
            said += capsys.readouterr().err
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_a_wait_is_named_once_where_stderr_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with waiting.waiting("starting Spark"):
        assert "einmal-waiting" not in [each.name for each in threading.enumerate()]
    assert capsys.readouterr().err == "starting Spark\n"
