"""Options by name: text, numbers, flags and times, and the client's settings among them.

Names are matched without regard to case, as Spark does (a Python source gets them in lower case). An unknown name is
an error that suggests the nearest known name: a misspelt ``startingOffsets`` must not read a topic from its end.
Options ``kafka.*`` are the client's settings under Kafka's names, checked by the client.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any, Final

from einmal.client.config import ProducerSettings
from einmal.commit_protocol.commit_record import RESERVED_TOPICS
from einmal.metadata.topics import is_legal_name
from einmal.misspelt import nearest_name
from einmal.options.client import ClientOptionError, ClientOptions, Kind, client_options

_UNITS_MS: Final = {"": 1, "ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


class OptionError(ValueError):
    """An option is missing, unknown, or has a value that it cannot have. Raised before anything is sent."""


def client_settings(options: Mapping[str, str]) -> dict[str, str]:
    """The ``kafka.*`` options, without the prefix."""
    return {name.removeprefix("kafka."): value for name, value in options.items() if name.startswith("kafka.")}


_DOTTED: Final = {"transactional_id": "transactional.id", "processing_guarantee": "processing.guarantee"}
_PREFIXED: Final = {"kafka.transactional.id": "transactional.id"}


def dotted(given: Mapping[str, Any], *, prefixed: bool = False) -> dict[str, Any]:
    """The options under Kafka's names where they have those of Python's keywords; with ``prefixed`` also the
    transactional.id, where it has the prefix of the client's settings. Raises OptionError."""
    names = _DOTTED | _PREFIXED if prefixed else _DOTTED
    result: dict[str, Any] = {}
    for name, value in given.items():
        known = names.get(name, name)
        if known in result:
            raise OptionError(f'option "{known}" is set twice\nhint: "{name}" is the same option: leave one out')
        result[known] = value
    return result


class Options:
    """Options by name, whatever their case."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        self._given = {name.lower(): (name, value) for name, value in dotted(given).items()}

    def text(self, name: str, default: str | None = None) -> str | None:
        option = self._given.get(name.lower())
        return default if option is None or option[1] is None else str(option[1])

    def required(self, name: str, example: str) -> str:
        value = self.text(name)
        if not value:
            raise OptionError(f'option "{name}" is missing\nhint: .option("{name}", "{example}")')
        return value

    def refuse_empty(self, names: Collection[str]) -> None:
        """Those of these options that are set have a value. Raises OptionError."""
        for name in names:
            value = self.text(name)
            if value is not None and not value.strip():
                raise OptionError(f'option "{name}" is empty\nhint: set a value, or leave it out')

    def number(
        self, name: str, default: int | None = None, *, minimum: int = 1, maximum: int | None = None
    ) -> int | None:
        value = self.text(name)
        if value is None:
            return default
        if not re.fullmatch(r"-?\d{1,100}", value) or int(value) < minimum:
            raise OptionError(f'option "{name}" is a whole number of at least {minimum}, not {value!r}')
        if maximum is not None and int(value) > maximum:
            raise OptionError(f'option "{name}" is at most {maximum:,}, not {value}')
        return int(value)

    def flag(self, name: str, default: bool) -> bool:
        value = (self.text(name) or str(default)).lower()
        if value not in ("true", "false"):
            raise OptionError(f'option "{name}" is true or false, not {value!r}')
        return value == "true"

    def client(self, kind: Kind) -> ClientOptions:
        """The ``kafka.*`` options, and the transactional.id if it is set. Raises OptionError."""
        settings = client_settings({name: str(value) for name, (_, value) in self._given.items() if value is not None})
        if kind is ProducerSettings and (transactional_id := self.text("transactional.id")):
            if settings.get("transactional.id", transactional_id) != transactional_id:
                raise OptionError(
                    'options "transactional.id" and "kafka.transactional.id" are one, and have two values\n'
                    "hint: leave one out"
                )
            settings["transactional.id"] = transactional_id
        try:
            return client_options(kind, settings)
        except ClientOptionError as error:
            raise OptionError(f"{error}\nhint: {error.hint}") from error

    def without_effect(self, names: Collection[str]) -> tuple[str, ...]:
        """Those of these options that are set."""
        return tuple(name for name in names if name.lower() in self._given)

    def duration_ms(self, name: str, default: int) -> int:
        """As Spark reads one: "15m", "30s", or a number of ms. Raises OptionError."""
        value = self.text(name)
        if value is None:
            return default
        match = re.fullmatch(r"\s*(\d{1,100})\s*([a-z]*)\s*", value.lower())
        if match is None or match[2] not in _UNITS_MS:
            raise OptionError(f'option "{name}" is a time such as 500ms, 30s, 15m, 2h or 1d, not {value!r}')
        return int(match[1]) * _UNITS_MS[match[2]]

    def refuse_unknown(self, known: Collection[str], *, kafka: bool = True) -> None:
        """``kafka``: whether the client's settings are known, which it checks itself."""
        names = {name.lower() for name in known}
        for lower, (given, _) in self._given.items():
            if lower in names or (kafka and lower.startswith("kafka.")):
                continue
            near = nearest_name(given, known)
            every = [*sorted(known), *(["kafka.*"] if kafka else [])]
            hint = f'did you mean "{near}"?' if near else f"known are: {', '.join(every)}"
            raise OptionError(f'unknown option "{given}"\nhint: {hint}')


def check_topic(option: str, topic: str) -> None:
    """Raises OptionError for a name that no topic of ours can have."""
    if not is_legal_name(topic):
        raise OptionError(
            f'option "{option}" is no name of a topic: {topic!r:.300}\n'
            "hint: 1 to 249 letters, digits, '.', '_' or '-', not '.' or '..'"
        )
    if topic in RESERVED_TOPICS:
        raise OptionError(f'option "{option}": {reserved(topic)}')


def reserved(topic: str) -> str:
    """Why a topic of ``RESERVED_TOPICS`` is no output, and what to do."""
    return (
        f"{topic} is an internal topic of brokers or pipelines: output there would corrupt what they keep in it\n"
        "hint: write to a topic of your own"
    )
