"""The committer's effects on a commit point.

An effect is one verb; its answer, or what the committer learns of its error, is the event.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from einmal.client.errors import KafkaError
from einmal.commit_protocol import effects as protocol
from einmal.sinks.commit_point import ALL_OR_NOTHING, CommitPoint, OutcomeUnknown, SinkError, SinkFailed, event_of
from einmal.wire.errors import WireError

VERBS: Final = (protocol.ReadRecord, protocol.WriteCommitRecord, *ALL_OR_NOTHING)
"""The effects that ``perform`` performs; writing a batch is its caller's."""
_E = TypeVar("_E")


def answered(effect: object, act: Callable[[], _E], fenced_hint: str) -> _E | protocol.Event:
    """Return what ``act``, which performs the effect, returns, or the event of its error."""
    try:
        return act()
    except SinkError as error:
        return event_of(error, effect, fenced_hint)  # type: ignore[arg-type]
    except (KafkaError, WireError) as error:
        unknown = OutcomeUnknown(str(error)) if isinstance(effect, ALL_OR_NOTHING) else SinkFailed(str(error))
        return event_of(unknown, effect, fenced_hint)  # type: ignore[arg-type]


def perform(effect: object, commit_point: CommitPoint) -> protocol.Event:
    """One of ``VERBS``. Raises SinkError, KafkaError, UnreadableCommitRecord, PipelineRefused."""
    match effect:
        case protocol.ReadRecord(certain):
            return protocol.RecordRead(commit_point.read() if certain else commit_point.look())
        case protocol.InitProducerId(previous):
            return protocol.IdentityGranted(commit_point.acquire(previous))
        case protocol.AbortHeld(identity):
            return protocol.Ended(commit_point.abort(identity))
        case protocol.WriteCommitRecord(identity, record):
            commit_point.record(identity, record)
            return protocol.Done()
        case protocol.EndTxn(identity, committed):
            return protocol.Ended(commit_point.commit(identity) if committed else commit_point.abort(identity))
        case _:
            raise AssertionError(effect)
