"""What a pipeline writes to, as it is named and configured; ``commit_point`` has what one run does with it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

from einmal.options.values import Options
from einmal.pipeline.reasons import Reason
from einmal.schemas.settings import ErrorSettings
from einmal.sinks.commit_point import Committed


class Sink(ABC):
    """A type of sink with its options: ``type = "..."`` in a pipeline.toml, ``format("...")`` in a program.

    Made from options without connecting to anything; one for each query, batch write or command.
    """

    OPTIONS: ClassVar[tuple[str, ...]] = ()
    """The names of its own options, beside those of every pipeline; ``SECRETS`` are never shown."""
    SECRETS: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def __init__(self, options: Options) -> None:
        """Raises OptionError."""

    @property
    @abstractmethod
    def table(self) -> str:
        """What is written, for a reader: a table's name, a directory."""

    @property
    def errors(self) -> ErrorSettings:
        """What happens to rows that it rejects. Where they are tolerated, its commit points have ``rejected``."""
        return ErrorSettings()

    @abstractmethod
    def identity(self) -> str | None:
        """Which cluster or database this is, whatever its address: a checkpoint belongs to one. None: it has no
        identity. Raises TargetError."""

    def promises(self) -> tuple[Reason, ...]:
        """Why its commits are exactly once, and under which conditions, for ``einmal explain``. Asks nobody. None by
        default: ``explain`` describes topics from their cluster."""
        return ()

    @abstractmethod
    def committed(self) -> Mapping[str, Committed]:
        """The records of all pipelines that have committed there, by name. Raises TargetError."""

    def close(self) -> None:
        """Release what all its commit points share."""
        return
