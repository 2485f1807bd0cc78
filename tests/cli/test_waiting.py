"""Claims about the output of a command while it waits."""

from __future__ import annotations

import time

import pytest

from einmal.cli import waiting


def test_a_wait_is_named_at_once_and_again_while_it_lasts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(waiting, "_EVERY_S", 0.01)
    said = ""
    with waiting.waiting("starting Spark"):
        assert capsys.readouterr().err == "starting Spark\n"
        deadline = time.monotonic() + 20
        while "starting Spark: 0 s\n" not in said:
            said += capsys.readouterr().err
            assert time.monotonic() < deadline
            time.sleep(0.01)
