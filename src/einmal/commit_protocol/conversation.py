"""A conversation with the committer inside a larger machine: that of a mirror, or of an ingester.

A machine is a generator that yields effects and receives events. What the committer asks for passes through it to the
driver, except what only the machine knows how to do: writing a batch is its own sequence of effects.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TypeVar

from einmal.commit_protocol import effects as protocol
from einmal.commit_protocol.committer import Committer
from einmal.types import ProducerIdAndEpoch

_Effect = TypeVar("_Effect")
_Event = TypeVar("_Event")


class RunEnded(Exception):
    """The run cannot continue. ``may_restart``: a new run reads the outcome from the commit record."""

    def __init__(self, reason: str, hint: str, *, may_restart: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.hint = hint
        self.may_restart = may_restart


def converse(
    committer: Committer,
    effect: protocol.Effect,
    write: Callable[[ProducerIdAndEpoch], Generator[_Effect, _Event, _Event]],
) -> Generator[_Effect | protocol.Effect, _Event, None]:
    """Let the committer decide, from its first ``effect`` until it is ready. ``write``: one attempt to write the batch.
    Raises RunEnded."""
    while True:
        event: object
        match effect:
            case protocol.Ready():
                return
            case protocol.Refused(reason, hint) | protocol.Dead(reason, hint):
                raise RunEnded(reason, hint)
            case protocol.RestartQuery(reason, hint):
                raise RunEnded(reason, hint, may_restart=True)
            case protocol.WriteBatch(identity):
                event = yield from write(identity)
            case protocol.CommitSourcePositions():
                # No group of the sink's has offsets in a source that is not one of its topics.
                event = protocol.Done()
            case _:
                event = yield effect
        effect = committer.step(event)  # type: ignore[arg-type]
