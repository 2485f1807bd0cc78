"""The command line inside the tests' own process: quick, with exit status, stdout and stderr as a shell sees them."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from typer.testing import CliRunner

from einmal.cli.app import app


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
        self._environment = {"KAFKA_BROKERS": bootstrap}

    def __call__(self, *arguments: str, stdin: str | bytes = "", status: int = 0) -> Result:
        result = CliRunner().invoke(app, list(arguments), input=stdin, env=self._environment)
        assert result.exit_code == status, (result.output, result.exception)
        return Result(result.exit_code, result.stdout.splitlines(), result.stderr.splitlines())
