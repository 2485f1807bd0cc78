"""Claims about the options that every verb has: -q and -v."""

from __future__ import annotations

import json
import logging

import pytest

from einmal.cli.printing.messages import be_quiet, note
from tests.cli.running import Cli

UNREACHABLE = ("-b", "127.0.0.1:1", "-X", "bootstrap.timeout.ms=50")


def test_notes_are_left_out_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    be_quiet(True)
    note("one")
    be_quiet(False)
    note("two")
    assert capsys.readouterr().err == "two\n"


def test_errors_and_hints_are_printed_anyway() -> None:
    loud = Cli("127.0.0.1:1")("topic", "list", *UNREACHABLE, status=1)
    quiet = Cli("127.0.0.1:1")("topic", "list", "-q", *UNREACHABLE, status=1)
    assert [line.split(":")[0] for line in loud.errors] == [line.split(":")[0] for line in quiet.errors]
    assert [line.split(":")[0] for line in quiet.errors] == ["error", "hint"]


@pytest.mark.system
def test_a_quiet_command_has_its_data_alone(cli: Cli) -> None:
    assert cli("txn", "find-hanging").errors[0].startswith("note: ")
    assert cli("txn", "find-hanging", "--quiet").errors == []


@pytest.mark.system
def test_a_verbose_command_logs_what_its_client_does_and_the_next_one_does_not(cli: Cli) -> None:
    def events(*options: str) -> set[str]:
        return {json.loads(line)["event"] for line in cli("topic", "list", *options).errors}

    before = (logging.getLogger().level, list(logging.getLogger().handlers))
    assert events("-v") == {"connected"}
    assert events("-vv") >= {"connected", "request_answered"}
    assert events() == set()
    assert (logging.getLogger().level, list(logging.getLogger().handlers)) == before
