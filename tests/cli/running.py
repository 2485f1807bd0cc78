"""The command line inside the tests' own process: quick, with exit status, stdout and stderr as a shell sees them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from typing import Any, Final, NamedTuple

import typer.testing
from typer.main import get_command

from einmal.cli.app import app
from einmal.cli.printing.messages import be_quiet

# It is the same for each run, and keeps the commands that it has imported.
typer.testing._get_command = cache(get_command)  # type: ignore[attr-defined]
_RUNNER: Final = typer.testing.CliRunner()


def invoke(arguments: Sequence[str], **options: Any) -> typer.testing.Result:
    """Run ``einmal`` with these arguments; ``options`` are those of ``CliRunner.invoke``."""
    try:
        return _RUNNER.invoke(app, arguments, **options)
    finally:
        # A program ends with its command; this process then runs tests that expect notes.
        be_quiet(False)


class Result(NamedTuple):
    status: int
    lines: list[str]
    errors: list[str]

    @property
    def document(self) -> Any:
        (line,) = self.lines
        return json.loads(line)


class Cli:
    """Runs commands against one cluster, which they find through the environment."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self._environment = {"KAFKA_BROKERS": bootstrap}

    def __call__(self, *arguments: str, stdin: str | bytes = "", status: int = 0) -> Result:
        result = invoke(arguments, input=stdin, env=self._environment)
        assert result.exit_code == status, (result.output, result.exception)
        return Result(result.exit_code, result.stdout.splitlines(), result.stderr.splitlines())
