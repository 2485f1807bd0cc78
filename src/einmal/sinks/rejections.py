"""The rows of a batch that a sink rejects: which they are, and how many there may be. Pure.

A database reports that one of many rows breaks a rule, and not which. So a statement that has failed is tried again
with each half of its rows, down to single ones: some ``2 k log2(n / k)`` statements for ``k`` rejected rows of ``n``.
A sink that can make many attempts with one message narrows few rows down by itself (``Narrow``).
What has succeeded stays in the open transaction, so the halves see each other's rows: of two rows that cannot both be
in a table, the later one is rejected.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Final, TypeVar

from einmal.pipeline.dead_letters import RejectedRow, ToleranceExceeded
from einmal.schemas.settings import LIMIT, TOLERANCE, ErrorSettings
from einmal.sinks.commit_point import SinkFailed
from einmal.sinks.row_schema import RowSchema

RECORD: Final = "einmal_record"
"""The column that names the record that a row was made of. It is not stored."""
RECORD_FIELDS: Final = {"topic": "string", "partition": "int", "offset": "bigint"}
REFUSAL: Final = "einmal_refused"
"""The column of staged rows that no table could take: why. Of such a row only the record is staged."""
REJECTED: Final = "einmal_rejected"
"""The table of rejected rows, in the sink's database: an outbox, from which dead letters are made once the batch is
committed. It has those of the last batch of each pipeline."""
REJECTED_MAX: Final = 10_000
"""Rejected rows of a batch, whatever its limit: each costs statements, and is in the driver's memory."""
NO_KEY: Final = "null_value_not_allowed"
TOO_LATE: Final = "late_version"

E = TypeVar("E")
Rows = Sequence[int]
Attempt = Callable[[Rows], E | None]
"""Puts these rows into the open transaction; or changes nothing, and returns why one of them is rejected."""
Narrow = Callable[[Rows], tuple[Sequence[tuple[int, str]], Rows] | None]
"""Puts those of these rows into the open transaction that it can. Those that failed alone, each with what all rows have
in common that are rejected for the same reason, whatever is added later (empty: it may be another reason then); and
rows at the end that were not tried. None, and then nothing has changed: this search cannot be used for these rows."""
NARROW_MAX: Final = 1_024
"""Rows of one search by ``Narrow``: it has few of them in memory, and ends soon."""


def find_rejected(
    rows: Rows,
    error: E,
    attempt: Attempt[E],
    *,
    depends: Callable[[E], bool] = lambda _: False,
    check: Callable[[int], None] = lambda _: None,
    narrow: Narrow | None = None,
) -> dict[int, E]:
    """Put all rows but the rejected ones into the open transaction; the rejected ones, and why.

    ``error``: what all of them together failed with. ``depends``: whether a row may be rejected only because of rows
    that come later, as by a foreign key between rows of one batch; it is then tried again. ``check`` is called with
    the number of rejected rows, and raises where they are too many. ``narrow``: a faster search among few rows; of its
    suspects one for each reason is tried again.
    """
    rejected: dict[int, E] = {}
    _halve(rows, error, attempt, rejected, check, narrow)
    while again := [row for row, reason in rejected.items() if depends(reason)]:
        before = len(rejected)
        rejected = {row: reason for row, reason in rejected.items() if not depends(reason)}
        if (failed := attempt(again)) is not None:
            _halve(again, failed, attempt, rejected, check, narrow)
        if len(rejected) == before:
            break
    return dict(sorted(rejected.items()))


def _halve(
    rows: Rows,
    error: E,
    attempt: Attempt[E],
    rejected: dict[int, E],
    check: Callable[[int], None],
    narrow: Narrow | None,
) -> None:
    # Rows, and what they are known to fail with.
    waiting: list[tuple[Rows, E | None]] = [(rows, error)]
    reasons: dict[str, E] = {}
    while waiting:
        some, known = waiting.pop()
        failed = attempt(some) if some and known is None else known
        if failed is None:
            continue
        if len(some) == 1:
            rejected[some[0]] = failed
            check(len(rejected))
            continue
        if narrow is not None and len(some) > NARROW_MAX:
            # Not by halves: where each of these has a rejected row, all rows would be tried at every level.
            starts = range(0, len(some), NARROW_MAX)
            waiting += [(some[start : start + NARROW_MAX], None) for start in reversed(starts)]
            continue
        if narrow is not None and (narrowed := narrow(some)) is not None:
            suspects, untried = narrowed
            waiting.append((untried, None))
            # Suspects come first: rows are tried in their order.
            for row, why in suspects:
                alone = reasons.get(why) or attempt([row])
                if alone is not None:
                    rejected[row] = alone
                    check(len(rejected))
                    if why:
                        reasons[why] = alone
            continue
        middle = len(some) // 2
        first, second = some[:middle], some[middle:]
        # The first half comes first: rows are tried in their order.
        if (of_first := attempt(first)) is None:
            # The error of both is in the second half. If that is one row, it is tried once more.
            waiting.append((second, failed if len(second) > 1 else None))
        else:
            waiting += [(second, None), (first, of_first)]


class Rejections:
    """The rejected rows of one batch. ``sink``: the name of its commit record; ``rows``: how many the batch has."""

    def __init__(self, sink: str, errors: ErrorSettings, batch_id: int, rows: int) -> None:
        self._sink = sink
        self._errors = errors
        self._batch_id = batch_id
        self._rows = rows
        self._count = 0
        self._rejected: dict[tuple[str, int, int], RejectedRow] = {}

    @property
    def count(self) -> int:
        return self._count

    @property
    def rejected(self) -> tuple[RejectedRow, ...]:
        """One for each record: a record that two rejected rows were made of is one dead letter."""
        return tuple(self._rejected.values())

    def check(self, more: int = 0) -> None:
        """Whether there may be so many more. Raises ToleranceExceeded."""
        count = self._count + more
        if count > REJECTED_MAX:
            limit = f"{REJECTED_MAX:,}, which is the most that a batch can have"
        elif self._errors.limit.is_exceeded(count, self._rows):
            limit = LIMIT
        else:
            return
        raise ToleranceExceeded(
            f"{self._sink}: {count:,} or more of {self._rows:,} rows of batch {self._batch_id} are rejected by the "
            f"sink, which is more than {limit}\nhint: correct the rows or the table, or raise the limit"
        )

    def add(self, record: Sequence[Any], exception: str, message: str) -> None:
        """``record``: topic, partition and offset. Raises SinkFailed where it names none, ToleranceExceeded."""
        topic, partition, offset = record
        if topic is None or partition is None or offset is None:
            raise SinkFailed(
                f"a row is rejected ({message}), and its {RECORD} is NULL: no dead letter can be made of it. "
                f"Hint: {HINT}",
                will_again=True,
            )
        self._count += 1
        self.check()
        row = RejectedRow(str(topic), int(partition), int(offset), exception, message)
        self._rejected.setdefault((row.topic, row.partition, row.offset), row)


HINT: Final = f"SELECT ..., struct(topic, partition, offset) AS {RECORD}, of the record that the row is made of"


def record_problems(
    errors: ErrorSettings, schema: RowSchema, own: Collection[str] = (REFUSAL,)
) -> list[tuple[str, str]]:
    """Return what is wrong with the column that names a row's record, and with columns of names that the search for
    rejected rows needs for its ``own``."""
    if not errors.tolerates:
        return []
    problems = [
        (f"with {TOLERANCE}=all no column of the query can be named {field.name!r}", "rename it")
        for field in schema
        if field.name.lower() in own
    ]
    kinds = {field.name: str(field.type) for field in schema}
    wanted = f"struct<{','.join(f'{name}:{kind}' for name, kind in RECORD_FIELDS.items())}>"
    if kinds.get(RECORD) != wanted:
        what = f"has no column {RECORD}" if RECORD not in kinds else f"has {RECORD} as {kinds[RECORD]}, not {wanted}"
        made = f"{TOLERANCE}=all makes dead letters of the records of rejected rows, and the query {what}"
        problems.append((made, HINT))
    return problems


def as_columns(rows: Iterable[RejectedRow]) -> list[tuple[int, str, int, int, str, str]]:
    """For the outbox: number, topic, partition, offset, exception, message."""
    return [
        (number, row.topic, row.partition, row.offset, row.exception, row.message) for number, row in enumerate(rows)
    ]
