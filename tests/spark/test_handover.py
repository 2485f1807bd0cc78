"""Claims about the keeper's memory: which batch a commit belongs to, and what the messages of tasks prove."""

from __future__ import annotations

import pytest

from einmal.commit_protocol.claims import Denied, Output
from einmal.pipeline.errors import PipelineFailed
from einmal.spark.writer.handover import AttemptEnd, Handover, Proof, proof_of

ONE = Output("out", 0, 0, 4, 5)
OTHER = Output("out", 1, 7, 9, 3)


def test_all_tasks_together_prove_what_each_of_them_has_written() -> None:
    assert proof_of(3, [Proof(3, "a", (ONE,)), Proof(3, "a"), Proof(3, "a", (OTHER,))]) == Proof(3, "a", (ONE, OTHER))


@pytest.mark.parametrize(
    ("proofs", "why"),
    [
        ([], "0 of 0 tasks"),
        ([Proof(3, "a"), None], "1 of 2 tasks"),
        ([Proof(3, "a"), Proof(3, "b")], "several attempts"),
        ([Proof(3, "a"), Proof(3, "")], "several attempts"),
        ([Proof(3, "a"), Proof(4, "a")], "several attempts"),
        ([Proof(4, "a")], "Spark commits batch 3, and its tasks have written batch 4"),
        ([Proof(4, "")], "Spark commits batch 3, and its tasks have written batch 4"),
    ],
)
def test_what_is_not_of_one_attempt_of_this_batch_proves_nothing(proofs: list[Proof | None], why: str) -> None:
    found = proof_of(3, proofs)
    assert isinstance(found, Denied)
    assert why in found.reason


def test_a_proof_commits_the_open_attempt_once() -> None:
    handover = Handover()
    attempt = handover.open(3, "a")
    assert handover.commit(Proof(3, "a", (ONE,))) is attempt
    assert (attempt.verdict, attempt.outputs) == (AttemptEnd.COMMIT, (ONE,))
    again = handover.commit(Proof(3, "a", (ONE,)))
    assert isinstance(again, Denied)


@pytest.mark.parametrize("proof", [Proof(3, "b"), Proof(2, "a"), Proof(4, "a"), Proof(3, "")])
def test_a_proof_of_another_attempt_commits_nothing(proof: Proof) -> None:
    handover = Handover()
    attempt = handover.open(3, "a")
    assert isinstance(handover.commit(proof), Denied)
    assert attempt.verdict is None


def test_nothing_is_committed_when_nothing_is_open() -> None:
    assert isinstance(Handover().commit(Proof(3, "a")), Denied)


def test_the_first_verdict_counts() -> None:
    handover = Handover()
    attempt = handover.open(3, "a")
    handover.give_up("planned again")
    assert isinstance(handover.commit(Proof(3, "a")), Denied)
    assert (attempt.verdict, attempt.reason) == (AttemptEnd.GIVE_UP, "planned again")

    handover = Handover()
    attempt = handover.open(3, "a")
    handover.commit(Proof(3, "a"))
    handover.give_up("planned again")
    assert attempt.verdict is AttemptEnd.COMMIT


def test_spark_gives_up_the_batch_that_it_names() -> None:
    handover = Handover()
    attempt = handover.open(3, "b")
    handover.give_up("aborted", 2)
    assert attempt.verdict is None
    handover.give_up("aborted", 3)
    assert attempt.verdict is AttemptEnd.GIVE_UP


def test_only_the_batch_after_the_last_one_that_was_committed_continues_a_run() -> None:
    handover = Handover()
    assert not handover.continues("q", 0), "a keeper that was started has no run"
    committed = handover.open(3, "a")
    handover.close("q", 3, None)
    assert (committed.is_over, committed.failure) == (True, None)
    assert handover.continues("q", 4)
    assert not handover.continues("q", 3), "it was planned before: the query has been started again"
    assert not handover.continues("q", 5)
    assert not handover.continues("another checkpoint", 4)
    failed, why = handover.open(4, "b"), PipelineFailed("no")
    handover.close("q", 4, why)
    assert (failed.is_over, failed.failure) == (True, why)
    assert not handover.continues("q", 4)
    assert not handover.continues("q", 5)


def test_a_batch_that_was_in_already_continues_a_run() -> None:
    handover = Handover()
    handover.close("q", 3, None)
    assert handover.continues("q", 4)
