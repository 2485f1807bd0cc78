from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from einmal.commit_protocol import effects as protocol
from einmal.commit_protocol.commit_record import CommitRecord, decode
from einmal.ingest import effects
from einmal.ingest.effects import IngestEffect, IngestEvent
from einmal.ingest.machine import IngestMachine
from einmal.types import ProducerEpoch, ProducerId, ProducerIdAndEpoch

Answer = Callable[[IngestEffect], IngestEvent]
BEGIN = {"next": 0}


@dataclass
class World:
    """Source and sink in memory. ``batches``: positions behind the batches to come; ``answers``: instead of the
    usual ones, by type of effect."""

    batches: list[Any] = field(default_factory=list)
    record: CommitRecord | None = None
    origin: str = "numbers"
    performed: list[IngestEffect] = field(default_factory=list)
    answers: dict[type, Answer] = field(default_factory=dict)
    _epoch: int = 0
    _staged: CommitRecord | None = None

    def run(self, run: str = "run-1") -> IngestEffect:
        """Until the machine is idle or stops; that effect."""
        machine = IngestMachine("numbers", run)
        effect = machine.start()
        while not isinstance(effect, effects.Idle | effects.IngestStops):
            self.performed.append(effect)
            effect = machine.step(self.answers.get(type(effect), self.answer)(effect))
        return effect

    def stopped(self, run: str = "run-1") -> effects.IngestStops:
        effect = self.run(run)
        assert isinstance(effect, effects.IngestStops), effect
        return effect

    def kinds(self) -> list[str]:
        return [type(each).__name__ for each in self.performed]

    def answer(self, effect: IngestEffect) -> IngestEvent:
        match effect:
            case protocol.ReadRecord():
                return protocol.RecordRead(self.record)
            case protocol.InitProducerId():
                return protocol.IdentityGranted(self._next_identity())
            case protocol.WriteCommitRecord(_, record):
                self._staged = record
                return protocol.Done()
            case protocol.EndTxn(_, committed):
                self.record = self._staged if committed else self.record
                return protocol.Ended(self._next_identity())
            case effects.AskOrigin():
                return effects.OriginKnown(self.origin)
            case effects.NextPart():
                return effects.BatchFound(self.batches.pop(0)) if self.batches else effects.NothingNew()
            case effects.AppendRecords():
                return effects.RecordsAppended(())
            case _:
                return effects.SourceReady()

    def _next_identity(self) -> ProducerIdAndEpoch:
        self._epoch += 1
        return ProducerIdAndEpoch(ProducerId(7), ProducerEpoch(self._epoch))


def test_a_position_is_confirmed_after_its_transaction_has_ended() -> None:
    world = World([{"next": 3}])
    world.run()
    assert world.kinds()[-6:] == [
        "NextPart",
        "AppendRecords",
        "WriteCommitRecord",
        "EndTxn",
        "ConfirmPosition",
        "NextPart",
    ]
    assert world.record is not None
    assert world.record.end == ({"origin": "numbers", "position": {"next": 3}},)


def test_a_start_confirms_the_recorded_position_and_reads_behind_it() -> None:
    world = World([{"next": 3}])
    world.run()
    world.performed.clear()
    world.run("run-2")
    wanted = [effects.ConfirmPosition({"next": 3}), effects.OpenSource({"next": 3})]
    assert [each for each in world.performed if type(each) in map(type, wanted)] == wanted


def test_what_is_recorded_of_the_keys_is_restored_before_anything_is_read() -> None:
    window = {"clock": 5, "spans": [{"first": {"orders": {"0": 3}}}]}
    world = World([{"next": 3}])
    world.answers[effects.AppendRecords] = lambda effect: effects.RecordsAppended((), window)
    world.run()
    assert world.performed[world.kinds().index("RestoreKeys")] == effects.RestoreKeys(None, is_first=True)
    assert world.record is not None
    assert world.record.end == ({"origin": "numbers", "position": {"next": 3}, "window": window},)
    # It is compared with the record that is read, where a new epoch comes with another producer id.
    assert decode(world.record.key, world.record.encode()) == world.record
    world.performed.clear()
    world.run("run-2")
    kinds = world.kinds()
    assert world.performed[kinds.index("RestoreKeys")] == effects.RestoreKeys(window, is_first=False)
    assert kinds.index("InitProducerId") < kinds.index("RestoreKeys") < kinds.index("OpenSource")


@pytest.mark.parametrize("step", [effects.AppendRecords, protocol.WriteCommitRecord, protocol.EndTxn])
def test_what_fails_in_a_transaction_ends_the_run_without_a_second_attempt(step: type) -> None:
    world = World([{"next": 3}])
    failures: list[IngestEvent] = [protocol.Failed("NOT_ENOUGH_REPLICAS")]
    world.answers[step] = lambda effect: failures.pop() if failures else world.answer(effect)
    end = world.stopped()
    assert (end.may_restart, world.record) == (True, None)
    assert world.kinds().count("AppendRecords") == 1
    assert "ConfirmPosition" not in world.kinds()
    last = world.performed[-1]
    assert isinstance(last, protocol.EndTxn)
    assert not last.committed


def test_a_lost_answer_to_the_commit_confirms_nothing() -> None:
    world = World([{"next": 3}])
    world.answers[protocol.EndTxn] = lambda effect: protocol.Unclear("no answer")
    assert world.stopped().may_restart
    assert "ConfirmPosition" not in world.kinds()


@pytest.mark.parametrize(
    ("event", "may_restart"), [(effects.SourceDown("a", "b"), True), (effects.SourceStops("a", "b"), False)]
)
@pytest.mark.parametrize(
    "step",
    [
        effects.AskOrigin,
        effects.RestoreKeys,
        effects.OpenSource,
        effects.NextPart,
        effects.AppendRecords,
        effects.ConfirmPosition,
    ],
)
def test_what_the_source_reports_ends_the_run_with_its_hint(
    step: type, event: effects.SourceDown | effects.SourceStops, may_restart: bool
) -> None:
    world = World([{"next": 3}])
    world.answers[step] = lambda effect: event
    assert world.stopped() == effects.IngestStops("a", "b", may_restart)


def test_a_source_that_has_ended_ends_the_run() -> None:
    world = World()
    world.answers[effects.NextPart] = lambda effect: effects.SourceEnded()
    assert world.stopped().is_done


def test_a_position_of_a_former_origin_is_read_on_and_recorded_under_the_present_one() -> None:
    world = World(batches=[{"next": 3}])
    world.run()
    world.batches = [{"next": 5}]
    world.answers[effects.AskOrigin] = lambda effect: effects.OriginKnown("digits", ("figures", "numbers"))
    world.run("run-2")
    assert world.record is not None
    assert world.record.end == ({"origin": "digits", "position": {"next": 5}},)


def test_a_position_of_another_origin_is_refused_before_anything_is_read() -> None:
    world = World([{"next": 3}])
    world.run()
    world.performed.clear()
    world.origin = "letters"
    end = world.stopped("run-2")
    assert "the source is letters, but the recorded position is one of numbers" in end.reason
    assert not end.may_restart
    assert {"OpenSource", "ConfirmPosition"}.isdisjoint(world.kinds())


@pytest.mark.parametrize(
    "position", [{"next": {1, 2}}, {"next": float("nan")}, {1: 2}, {"next": (1, 2)}, [1], {"next": b"x"}, None]
)
def test_a_position_that_json_does_not_keep_is_refused(position: Any) -> None:
    world = World([position])
    assert "a bug of the source" in world.stopped().hint
    assert world.record is None


@pytest.mark.parametrize("end", [({"orders": {"0": 5}},), (), ({"origin": 1, "position": {}},), (BEGIN, BEGIN)])
def test_the_commit_record_of_something_else_is_refused(end: tuple[Any, ...]) -> None:
    record = CommitRecord(transactional_id="einmal-ingest-numbers", query_id="", checkpoint="", batch_id=-1, end=end)
    assert "is not of an ingester" in World(record=record).stopped().reason


def test_the_record_of_a_pipeline_with_a_checkpoint_of_its_own_is_not_fenced() -> None:
    record = CommitRecord(
        transactional_id="einmal-ingest-numbers", query_id="q", checkpoint="file:/data", batch_id=4, end=()
    )
    world = World(record=record)
    assert "belongs to the query with checkpoint 'file:/data'" in world.stopped().reason
    assert "InitProducerId" not in world.kinds()
