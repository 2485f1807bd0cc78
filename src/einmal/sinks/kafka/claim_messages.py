"""Messages between tasks and the driver's claim service (``claim_service``): one JSON array per line, which begins with
the name of the message. Each question has one answer."""

from __future__ import annotations

import json
from dataclasses import astuple
from typing import Any, Final, NamedTuple, TypeAlias

from einmal.commit_protocol.claims import Output, Task
from einmal.types import TopicPartition

LINE_BYTES_MAX: Final = 64 * 1024
CLAIMS_MAX: Final = 100
"""Partitions in one question: questions and answers are lines of bounded length."""


class ClaimingAttempt(NamedTuple):
    """Who asks, and in which transaction (``token``)."""

    token: str
    task: Task
    attempt_id: int


class LookUpTopic(NamedTuple):
    """Answer: TopicNumbers."""

    attempt: ClaimingAttempt
    topic: str


class ClaimPartitions(NamedTuple):
    """At most ``most`` of these. Answer: ClaimsGranted, AskAgain."""

    attempt: ClaimingAttempt
    numbers: tuple[int, ...]
    most: int


class ReportOutputs(NamedTuple):
    """Report of what the attempt has written, and is acknowledged. Answer: Noted."""

    attempt: ClaimingAttempt
    outputs: tuple[Output, ...]


class LeaveService(NamedTuple):
    """The attempt behind the connection is done. Answer: Noted."""


class TopicNumbers(NamedTuple):
    """The numbers of a topic's partitions in this batch: ``size`` of them, from ``base`` on."""

    base: int
    size: int


class Claim(NamedTuple):
    """A partition that this task alone may write until it reports. ``sequence``: of its first record there."""

    number: int
    partition: TopicPartition
    sequence: int


class ClaimsGranted(NamedTuple):
    claims: tuple[Claim, ...]


class AskAgain(NamedTuple):
    """Others write all the wanted partitions, or another attempt writes for this one."""


class Noted(NamedTuple):
    pass


class ClaimDenied(NamedTuple):
    """The answer to any question; the connection ends."""

    reason: str


Question: TypeAlias = LookUpTopic | ClaimPartitions | ReportOutputs | LeaveService
Answer: TypeAlias = TopicNumbers | ClaimsGranted | AskAgain | Noted | ClaimDenied


def encode(message: Question | Answer) -> bytes:
    return json.dumps([type(message).__name__, *message], default=astuple).encode() + b"\n"


def decode_question(line: bytes) -> Question:
    """Raises ValueError."""
    match json.loads(line):
        case ["LookUpTopic", attempt, str(topic)]:
            return LookUpTopic(_attempt(attempt), topic)
        case ["ClaimPartitions", attempt, [*numbers], int(most)] if all(isinstance(number, int) for number in numbers):
            return ClaimPartitions(_attempt(attempt), tuple(numbers), most)
        case ["ReportOutputs", attempt, [*outputs]]:
            return ReportOutputs(_attempt(attempt), tuple(map(_output, outputs)))
        case ["LeaveService"]:
            return LeaveService()
    raise ValueError("no question to the claim service")


def decode_answer(line: bytes) -> Answer:
    """Raises ValueError."""
    match json.loads(line):
        case ["TopicNumbers", int(base), int(size)]:
            return TopicNumbers(base, size)
        case ["ClaimsGranted", [*claims]]:
            return ClaimsGranted(tuple(map(_claim, claims)))
        case ["AskAgain"]:
            return AskAgain()
        case ["Noted"]:
            return Noted()
        case ["ClaimDenied", str(reason)]:
            return ClaimDenied(reason)
    raise ValueError("no answer of the claim service")


def _attempt(parts: Any) -> ClaimingAttempt:
    match parts:
        case [str(token), [int(job), int(number)], int(attempt_id)]:
            return ClaimingAttempt(token, Task(job, number), attempt_id)
    raise ValueError("no task attempt")


def _output(parts: Any) -> Output:
    match parts:
        case [str(topic), int(partition), int(first), int(last), int(count), int(crc)]:
            return Output(topic, partition, first, last, count, crc)
    raise ValueError("no output")


def _claim(parts: Any) -> Claim:
    match parts:
        case [int(number), [str(topic), int(partition)], int(sequence)]:
            return Claim(number, TopicPartition(topic, partition), sequence)
    raise ValueError("no claim")
