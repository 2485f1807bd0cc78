"""Shared by commands that connect to a cluster: its address, client settings, and the report of a failure."""

from __future__ import annotations

import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple, TypeVar

import typer

from einmal.cli.printing.formats import Format
from einmal.cli.printing.output import discard_output, print_rows, printable
from einmal.cli.profiles import chosen

if TYPE_CHECKING:
    from einmal.client import Admin, IsolationLevel, RangeReader, TopicPartition
    from einmal.client.errors import KafkaError

BROKERS_VARIABLES: Final = ("KAFKA_BROKERS", "RPK_BROKERS", "REDPANDA_BROKERS")
PLACEHOLDER: Final = "{bootstrap}"
"""In the arguments of a program that a command starts."""
_NEAREST: Final = "127.0.0.1:9092"
_KINDS: Final = ("AdminSettings", "ConsumerSettings", "ProducerSettings")
_SECURITY_PREFIXES: Final = ("sasl.", "ssl.", "security.")
Value = TypeVar("Value")
Name = TypeVar("Name")

Brokers = Annotated[
    str | None,
    typer.Option(
        "--brokers",
        "-b",
        "--bootstrap-server",
        metavar="HOST:PORT,...",
        help=f"Bootstrap servers of the cluster. Default: ${' or $'.join(BROKERS_VARIABLES)}, else the profile's, "
        f"else {_NEAREST}.",
        show_default=False,
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "-X",
        metavar="KEY=VALUE",
        help="Client setting, under Kafka's name; ${env:NAME} and ${file:PATH:KEY} are resolved.",
    ),
]
CommandConfig = Annotated[
    Path | None,
    typer.Option(
        "--command-config",
        metavar="FILE",
        help="client.properties file: client settings, such as security.protocol. Settings of Java's client that are "
        "unknown here are ignored with a warning.",
    ),
]


def config_of(
    brokers: str | None,
    settings: Sequence[str] | None = None,
    command_config: Path | None = None,
    kind: str = "AdminSettings",
) -> dict[str, Any]:
    """The client's configuration: the option -b, then -X, the file, the environment, the profile. Raises
    typer.BadParameter.

    ``kind``: the table of the client that the settings of the file are for.
    """
    config: dict[str, Any] = {"default.api.timeout.ms": 10_000, "bootstrap.servers": _NEAREST}
    environment = _from_environment()
    if (profile := chosen()) is not None:
        config |= _from_profile(*profile, environment, kind)
    config = _with_given(config | environment, settings, command_config, kind)
    if brokers:
        config["bootstrap.servers"] = brokers
    return config


def config_of_other(brokers: str, settings: Sequence[str] | None, command_config: Path | None) -> dict[str, Any]:
    """The configuration for another cluster than the one that the environment and the profile are about.

    Raises typer.BadParameter.
    """
    config: dict[str, Any] = {"default.api.timeout.ms": 10_000}
    return _with_given(config, settings, command_config, "AdminSettings") | {"bootstrap.servers": brokers}


def _with_given(
    config: dict[str, Any], settings: Sequence[str] | None, command_config: Path | None, kind: str
) -> dict[str, Any]:
    """With the settings of the file, and above them those of -X."""
    if command_config is not None:
        config |= _of_kind(read_properties(command_config), kind, str(command_config))
    for setting in settings or ():
        name, value = key_and_value(setting)
        config[name.strip()] = _resolved(name.strip(), value.strip())
    return config


def program_arguments(command: Sequence[str], config: Mapping[str, Any]) -> list[str]:
    """The command, with the bootstrap servers for every placeholder."""
    return [argument.replace(PLACEHOLDER, str(config["bootstrap.servers"])) for argument in command]


def program_environment(config: Mapping[str, Any]) -> dict[str, str]:
    """Variables for a program that connects with this configuration, as far as it is no secret.

    The protocol is named where it is known: that of the cluster, which the environment may have, is not a proxy's.
    """
    environment = {BROKERS_VARIABLES[0]: str(config["bootstrap.servers"])}
    if protocol := config.get("security.protocol"):
        environment["KAFKA_SECURITY_PROTOCOL"] = str(protocol)
    return environment


@contextmanager
def inspecting(config: Mapping[str, Any]) -> Iterator[tuple[Admin, RangeReader]]:
    """The clients that the read model (``einmal.inspection``) asks: the reader sees what is uncommitted, too."""
    from einmal.client import Admin, RangeReader

    with Admin(config) as admin, RangeReader({**config, "isolation.level": "read_uncommitted"}) as reader:
        yield admin, reader


def not_nan(value: float) -> float:
    """Callback of an option with a range, which NaN passes. Raises typer.BadParameter."""
    if math.isnan(value):
        raise typer.BadParameter("nan is no number")
    return value


def now_ms() -> int:
    """Milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def _from_environment() -> dict[str, str]:
    """Bootstrap servers, and security settings such as $KAFKA_SASL_PASSWORD: a secret in the arguments is visible to
    every user."""
    brokers = [os.environ[name] for name in BROKERS_VARIABLES if os.environ.get(name)]
    settings = {"bootstrap.servers": brokers[0]} if brokers else {}
    if not any(name.startswith(("KAFKA_SECURITY_", "KAFKA_SASL_", "KAFKA_SSL_")) for name in os.environ):
        return settings
    from einmal.client.security_settings import SECURITY_NAMES

    variables = {name: f"KAFKA_{name.upper().replace('.', '_')}" for name in sorted(SECURITY_NAMES)}
    return settings | {name: os.environ[variable] for name, variable in variables.items() if os.environ.get(variable)}


def _from_profile(name: str, settings: Mapping[str, str], environment: Mapping[str, str], kind: str) -> dict[str, str]:
    overridden = sorted(key for key, value in environment.items() if settings.get(key, value) != value)
    if overridden:
        print(f"warning: the environment overrides {', '.join(overridden)} of profile {name!r}", file=sys.stderr)
    return _of_kind(settings, kind, f"profile {name!r}")


def read_properties(path: Path) -> dict[str, str]:
    """The file of ``--command-config``. Raises typer.BadParameter."""
    from einmal.security.properties import parse_properties

    try:
        return parse_properties(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise typer.BadParameter(f"--command-config: {path} cannot be read: {reason}") from error


def known_settings() -> set[str]:
    """The settings of all kinds of clients."""
    from einmal.client import config

    return {name for kind in _KINDS for name, *_ in config.documentation(getattr(config, kind))}


def _of_kind(given: Mapping[str, str], kind: str, where: str) -> dict[str, str]:
    """Settings that this kind of client has, with references resolved. ``where`` they are, for a warning."""
    from einmal.client import config

    own = {name for name, *_ in config.documentation(getattr(config, kind))}
    return {
        name: _resolved(name, value)
        for name, value in without_unknown(given, where).items()
        if name in own or name.startswith(_SECURITY_PREFIXES)
    }


def without_unknown(given: Mapping[str, str], where: str) -> dict[str, str]:
    """Settings that a client of ours has, of any kind; for each other one a warning that names ``where`` it is."""
    known, kept = known_settings(), {}
    for name, value in given.items():
        # A misspelt security setting must not leave a connection less secure: the client rejects it.
        if name in known or name.startswith(_SECURITY_PREFIXES):
            # Java's clients trim what they read.
            kept[name] = value.strip()
        else:
            print(f"warning: {where}: unknown setting {name!r} is ignored", file=sys.stderr)
    return kept


def _resolved(name: str, value: str) -> str:
    from einmal.security.errors import SecuritySettingError
    from einmal.security.properties import read_file, resolved

    if "${" not in value:
        return value
    try:
        return resolved(name, value, os.environ, read_file)
    except SecuritySettingError as error:
        raise typer.BadParameter(f"{error.meaning}; {error.hint}") from error


def key_and_value(text: str) -> tuple[str, str]:
    """``KEY=VALUE``; the value may be empty. Raises typer.BadParameter."""
    key, equals, value = text.partition("=")
    if not equals:
        raise typer.BadParameter(f"{text!r} is not KEY=VALUE")
    return key, value


def without_repetition(pairs: Iterable[tuple[str, Value]]) -> dict[str, Value]:
    """A value for each key. Raises typer.BadParameter for a key with two: which of them is meant is not known."""
    values: dict[str, Value] = {}
    for key, value in pairs:
        if key in values:
            raise typer.BadParameter(f"{key} has two values, {values[key]!r} and {value!r}: pass one")
        values[key] = value
    return values


def print_error(error: KafkaError) -> None:
    """``error:`` and ``hint:`` on stderr, and ``see:`` where there is a page."""
    from einmal.cli.printing.pages import PAGES

    code = error.name if error.code is None else f"{error.name} ({error.code.value})"
    detail = f" [{printable(error.detail)}]" if error.detail else ""
    meaning, hint = printable(error.meaning), printable(error.what_to_do)
    print(f"error: {code}: {meaning}{detail}\nhint: {hint}", file=sys.stderr)
    if error.code is not None and error.code in PAGES:
        print(f"see:  {PAGES[error.code]}", file=sys.stderr)


class Outcomes(NamedTuple):
    """The outcome for each name, in order: its result, its error (already printed), or None if it was not tried."""

    of: dict[Any, Any]

    @property
    def done(self) -> dict[Any, Any]:
        return {name: what for name, what in self.of.items() if what is not None and not isinstance(what, Exception)}

    def print(self, kind: str, output: Format) -> None:
        """A row for each name, with its status; in JSON with the name of its error, too."""
        rows = []
        for name, what in self.of.items():
            error = what.name if isinstance(what, Exception) else None  # type: ignore[attr-defined]
            status = "failed" if error else "not tried" if what is None else what
            rows.append({kind: name, "status": status, "error": error})
        print_rows(rows, (kind, "status", "error") if output.has_all else (kind, "status"), output)

    def exit(self) -> None:
        """Ends the command with status 1 where not all is done."""
        if len(self.done) < len(self.of):
            raise typer.Exit(1)


class LogOffsets:
    """Offsets of partitions; one that has no leader, or does not exist, has None, after one warning."""

    def __init__(self, source: Admin) -> None:
        self._source = source
        self._errors: dict[TopicPartition, KafkaError] = {}

    def of(
        self, partitions: Iterable[TopicPartition], timestamp: int, isolation: IsolationLevel | None = None
    ) -> dict[TopicPartition, int | None]:
        """Their offsets at EARLIEST or LATEST."""
        from einmal.client import IsolationLevel
        from einmal.client.errors import KafkaError

        offsets: dict[TopicPartition, int | None] = dict.fromkeys(partitions)
        # One that had no answer would delay the next question again.
        asked = {partition: timestamp for partition in offsets if partition not in self._errors}
        answers = self._source.list_offsets_each(asked, isolation=isolation or IsolationLevel.READ_UNCOMMITTED)
        for partition, what in answers.items():
            if isinstance(what, KafkaError):
                print(f"warning: {partition} has no offsets now: {printable(str(what))}", file=sys.stderr)
                self._errors[partition] = what
            else:
                offsets[partition] = what.offset
        return offsets


def for_each(names: Iterable[Name], act: Callable[[Name], Any], *, is_alike: bool = False) -> Outcomes:
    """``act`` on each name; one that is refused leaves the others alone, any other failure ends the series.

    ``is_alike``: they need the same permission, so that the first one that lacks it ends the series.
    """
    from einmal.client.errors import KafkaError, NotAuthorized, RequestRefused

    outcomes: dict[Any, Any] = dict.fromkeys(names)
    for name in outcomes:
        try:
            outcomes[name] = act(name)
        except KafkaError as error:
            print_error(error)
            outcomes[name] = error
            is_last = is_alike if isinstance(error, NotAuthorized) else not isinstance(error, RequestRefused)
            if is_last:
                break
    return Outcomes(outcomes)


@contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """SIGTERM ends the block as Ctrl-C does, with status 143: transactions are aborted and groups are left. A second
    one ends the process at once."""

    def end(_number: int, _frame: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        raise SystemExit(128 + signal.SIGTERM)

    is_ours = threading.current_thread() is threading.main_thread()
    if not is_ours or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


@contextmanager
def failures_reported() -> Iterator[None]:
    """A failure of the client ends the command with ``error:`` and ``hint:`` on stderr and status 1."""
    from einmal.client.errors import KafkaError

    try:
        with ended_by_sigterm():
            yield
    except KafkaError as error:
        print_error(error)
        raise typer.Exit(1) from error
    except UnicodeEncodeError as error:
        # The text around it may be a password.
        wrong = error.object[error.start : error.end]
        raise typer.BadParameter(f"a text with {wrong!a} is not UTF-8, in which Kafka has its texts") from error
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    except BrokenPipeError:
        # Whoever read our output has seen enough.
        discard_output()
        raise typer.Exit(0) from None
