"""Shared by commands that connect to a cluster: its address, client settings, and the report of a failure."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import typer

from einmal.cli.formats import Format
from einmal.cli.output import print_rows

if TYPE_CHECKING:
    from einmal.client.errors import KafkaError

BROKERS_VARIABLES: Final = ("KAFKA_BROKERS", "RPK_BROKERS", "REDPANDA_BROKERS")
_NEAREST: Final = "127.0.0.1:9092"

Brokers = Annotated[
    str | None,
    typer.Option(
        "--brokers",
        "-b",
        "--bootstrap-server",
        metavar="HOST:PORT,...",
        help=f"Bootstrap servers of the cluster. Default: ${' or $'.join(BROKERS_VARIABLES)}, else {_NEAREST}.",
        show_default=False,
    ),
]
Settings = Annotated[
    list[str] | None, typer.Option("-X", metavar="KEY=VALUE", help="Client setting, under Kafka's name.")
]


def config_of(brokers: str | None, settings: Sequence[str] | None = None) -> dict[str, Any]:
    """The client's configuration. Raises typer.BadParameter."""
    found = brokers or next((os.environ[name] for name in BROKERS_VARIABLES if os.environ.get(name)), _NEAREST)
    config: dict[str, Any] = {"bootstrap.servers": found, "default.api.timeout.ms": 10_000}
    for setting in settings or ():
        name, value = key_and_value(setting)
        config[name.strip()] = value.strip()
    return config


def key_and_value(text: str) -> tuple[str, str]:
    """``KEY=VALUE``; the value may be empty. Raises typer.BadParameter."""
    key, equals, value = text.partition("=")
    if not equals:
        raise typer.BadParameter(f"{text!r} is not KEY=VALUE")
    return key, value


def print_error(error: KafkaError) -> None:
    """``error:`` and ``hint:`` on stderr."""
    code = error.name if error.code is None else f"{error.name} ({error.code.value})"
    detail = f" [{error.detail}]" if error.detail else ""
    print(f"error: {code}: {error.meaning}{detail}\nhint: {error.what_to_do}", file=sys.stderr)


class Outcomes(NamedTuple):
    """The outcome for each name, in order: its result, its error (already printed), or None if it was not tried."""

    of: dict[str, Any]

    @property
    def done(self) -> dict[str, Any]:
        return {name: what for name, what in self.of.items() if what is not None and not isinstance(what, Exception)}

    def print(self, kind: str, output: Format) -> None:
        """A row for each name, with its status; in JSON with the name of its error, too."""
        rows = []
        for name, what in self.of.items():
            error = what.name if isinstance(what, Exception) else None  # type: ignore[attr-defined]
            status = "failed" if error else "not tried" if what is None else what
            rows.append({kind: name, "status": status, "error": error})
        print_rows(rows, (kind, "status", "error") if output is Format.JSON else (kind, "status"), output)

    def exit(self) -> None:
        """Ends the command with status 1 where not all is done."""
        if len(self.done) < len(self.of):
            raise typer.Exit(1)


def for_each(names: Sequence[str], act: Callable[[str], Any]) -> Outcomes:
    """``act`` on each name; one that is refused leaves the others alone, any other failure ends the series."""
    from einmal.client.errors import KafkaError, RequestRefused

    outcomes: dict[str, Any] = dict.fromkeys(names)
    for name in outcomes:
        try:
            outcomes[name] = act(name)
        except KafkaError as error:
            print_error(error)
            outcomes[name] = error
            if not isinstance(error, RequestRefused):
                break
    return Outcomes(outcomes)


@contextmanager
def failures_told() -> Iterator[None]:
    """A failure of the client ends the command with ``error:`` and ``hint:`` on stderr and status 1."""
    from einmal.client.errors import KafkaError

    try:
        yield
    except KafkaError as error:
        print_error(error)
        raise typer.Exit(1) from error
    except UnicodeEncodeError as error:
        raise typer.BadParameter(f"{error.object!a} is not UTF-8, in which Kafka has its names") from error
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    except BrokenPipeError:
        # Whoever read our output has seen enough. Without this the interpreter complains at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(0) from None
