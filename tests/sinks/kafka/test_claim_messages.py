from __future__ import annotations

import pytest

from einmal.commit_protocol.claims import Output, Task
from einmal.sinks.kafka.claim_messages import (
    CLAIMS_MAX,
    LINE_BYTES_MAX,
    Answer,
    AskAgain,
    Claim,
    ClaimDenied,
    ClaimingAttempt,
    ClaimPartitions,
    ClaimsGranted,
    LeaveService,
    LookUpTopic,
    Noted,
    Question,
    ReportOutputs,
    TopicNumbers,
    decode_answer,
    decode_question,
    encode,
)
from einmal.types import TopicPartition

LARGEST = 2**63 - 1
NAME = "t" * 249
ATTEMPT = ClaimingAttempt("f" * 16, Task(LARGEST, LARGEST), LARGEST)
QUESTIONS: list[Question] = [
    LookUpTopic(ATTEMPT, NAME),
    ClaimPartitions(ATTEMPT, (LARGEST,) * CLAIMS_MAX, LARGEST),
    ReportOutputs(ATTEMPT, (Output(NAME, *[LARGEST] * 5),) * CLAIMS_MAX),
    LeaveService(),
]
ANSWERS: list[Answer] = [
    TopicNumbers(LARGEST, LARGEST),
    ClaimsGranted((Claim(LARGEST, TopicPartition(NAME, LARGEST), LARGEST),) * CLAIMS_MAX),
    AskAgain(),
    Noted(),
    ClaimDenied('a reason\nof "two" lines'),
]


def kind_of(message: object) -> str:
    return type(message).__name__


@pytest.mark.parametrize("question", QUESTIONS, ids=kind_of)
def test_a_question_is_decoded_as_it_was_asked(question: Question) -> None:
    decoded = decode_question(encode(question))
    assert (type(decoded), decoded) == (type(question), question)


@pytest.mark.parametrize("answer", ANSWERS, ids=kind_of)
def test_an_answer_is_decoded_as_it_was_sent(answer: Answer) -> None:
    decoded = decode_answer(encode(answer))
    assert (type(decoded), decoded) == (type(answer), answer)


@pytest.mark.parametrize("message", [*QUESTIONS, *ANSWERS], ids=kind_of)
def test_the_largest_message_is_one_line_of_bounded_length(message: Question | Answer) -> None:
    line = encode(message)
    assert line.index(b"\n") == len(line) - 1 < LINE_BYTES_MAX


def test_neither_end_decodes_its_own_messages() -> None:
    for question in QUESTIONS:
        with pytest.raises(ValueError, match="no answer"):
            decode_answer(encode(question))
    for answer in ANSWERS:
        with pytest.raises(ValueError, match="no question"):
            decode_question(encode(answer))
