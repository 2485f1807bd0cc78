"""A keeper of ``format("einmal")``, asked as Spark's workers ask it, without Spark."""

from __future__ import annotations

from einmal.spark.writer.messages import Answer, CommitBatch, GiveUp, Work
from einmal.spark.writer.run_keeper import RunKeeper


def ask(keeper: RunKeeper, question: CommitBatch | GiveUp) -> Answer:
    """As a commit worker does."""
    answers: list[Answer] = []
    keeper.answer(question, answers.append)
    return answers[0]


def token_of(work: Answer) -> str:
    """The token of a batch that is not in."""
    assert isinstance(work, Work), work
    assert work.grant is not None
    return work.grant.token
