"""The search for rejected rows inside the server: one message for many attempts.

Between client and server, each attempt costs a round trip or two. A block of PL/pgSQL makes the same attempts by
itself, each under a savepoint, which is what EXCEPTION sets. It finds the first rejected row of a failed group by
halves, and continues behind it with as many rows as had one rejected row so far.

It decides nothing: a row that failed alone is a suspect, which the client tries once more, because only the client can
see from where in the server an error comes (``refusals``). An error whose SQLSTATE has not been found to be a row's
leaves the block as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import psycopg
from psycopg import sql

from einmal.spark.targets.postgres.modes import WRITING
from einmal.spark.targets.postgres.refusals import OF_ROWS
from einmal.spark.targets.postgres.session import Session
from einmal.spark.targets.rejections import Rows

AMONG_CHOSEN: Final = sql.SQL("{} = ANY(current_setting('einmal.chosen')::bigint[])")
"""The condition for the rows of an attempt: the text of its statements stays the same."""
_RAISED: Final = "P0"
"""The class of errors that a function raises."""
_ALLOWED: Final = sql.SQL("SELECT has_language_privilege(oid, 'USAGE') FROM pg_language WHERE lanname = 'plpgsql'")
_FOUND: Final = sql.SQL("SELECT current_setting('einmal.suspects')::bigint[], current_setting('einmal.tried')::integer")
_BLOCK: Final = """
DECLARE
    numbers CONSTANT bigint[] := {numbers};
    suspects bigint[] := '{{}}';
    start integer := 1;
    stop integer := cardinality(numbers);  -- where the shortest group from start ends that has failed; 0: none has
    size integer := greatest(stop / 2, 1);
    deadline CONSTANT timestamptz := clock_timestamp() + interval '1 second';
BEGIN
    WHILE start <= cardinality(numbers) LOOP
        PERFORM set_config('einmal.chosen', CAST(numbers[start : start + size - 1] AS text), true);
        BEGIN
            {work}
            SET CONSTRAINTS ALL IMMEDIATE;
            start := start + size;
        EXCEPTION WHEN OTHERS OR assert_failure THEN
            IF left(SQLSTATE, 2) <> ALL ({classes}) AND SQLSTATE <> ALL ({states}) THEN
                RAISE;
            END IF;
            stop := start + size - 1;
        END;
        IF stop = start THEN
            suspects := suspects || numbers[start];
            start := start + 1;
        END IF;
        IF stop > start THEN
            size := (stop - start + 1) / 2;
        ELSE
            stop := 0;
            size := greatest(least(start / (cardinality(suspects) + 1), cardinality(numbers) - start + 1), 1);
        END IF;
        -- One statement would else be longer than a statement_timeout allows.
        EXIT WHEN start > 1 AND clock_timestamp() > deadline;
    END LOOP;
    PERFORM set_config('einmal.suspects', CAST(suspects AS text), true);
    PERFORM set_config('einmal.tried', CAST(start - 1 AS text), true);
END
"""


class Narrowing:
    """Attempts at ``work``, statements with the condition AMONG_CHOSEN. ``tried``: executes statements, and returns why
    a row was rejected; then nothing has changed."""

    def __init__(
        self,
        session: Session,
        work: Sequence[sql.Composed],
        tried: Callable[[Sequence[sql.Composed]], psycopg.Error | None],
    ) -> None:
        self._session = session
        # Composed once: for a statement of many columns it takes longer than its execution for one row.
        texts = [session.text(statement) for statement in work]
        self._statements = [sql.Composed([sql.SQL(text)]) for text in texts]
        self._work = sql.SQL(" ").join(sql.SQL("EXECUTE {};").format(sql.Literal(text)) for text in texts)
        self._tried = tried
        self._states: set[str] = set()

    @property
    def is_allowed(self) -> bool:
        """Whether the server has the language, and the role may use it. Raises TargetFailed."""
        return self._session.execute(WRITING, _ALLOWED).fetchall() == [(True,)]

    def attempt(self, rows: Rows) -> psycopg.Error | None:
        """Try these rows together, from the client. Raises TargetFailed."""
        chosen = sql.SQL("SELECT set_config('einmal.chosen', CAST({}::bigint[] AS text), true)")
        return self._tried([chosen.format(sql.Literal(list(rows))), *self._statements])

    def narrow(self, rows: Rows) -> tuple[Rows, Rows] | None:
        """See ``rejections.Narrow``. Raises TargetFailed."""
        block = sql.SQL(_BLOCK).format(
            numbers=sql.Literal(list(rows)),
            work=self._work,
            classes=_texts({*OF_ROWS, _RAISED}),
            states=_texts(self._states),
        )
        error = self._tried([sql.SQL("DO LANGUAGE plpgsql {}").format(sql.Literal(self._session.text(block)))])
        if error is not None:
            # A function has raised it. The client tries the halves, and the block knows this SQLSTATE from now on.
            self._states.add(error.sqlstate or "")
            return None
        ((suspects, tried),) = self._session.execute(WRITING, _FOUND).fetchall()
        return suspects, rows[tried:]


def _texts(values: set[str]) -> sql.Composed:
    return sql.SQL("{}::text[]").format(sql.Literal(sorted(values)))
