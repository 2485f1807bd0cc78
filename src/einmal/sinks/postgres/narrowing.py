"""The search for rejected rows inside the server: one message for many attempts.

Between client and server, each attempt costs a round trip or two. A block of PL/pgSQL makes the same attempts by
itself, each under a savepoint, which is what EXCEPTION sets. It finds the first rejected row of a failed group by
halves, and continues behind it with as many rows as had one rejected row so far.

It decides nothing: a row that failed alone is a suspect. Only the client can see from where in the server an error
comes (``refusals``), so it tries a suspect once more; but only one of all whose errors are equal in what the block can
see, and come from its own statement, not from a function or a foreign key, where later rows may matter. An error whose
SQLSTATE has not been found to be a row's leaves the block as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import psycopg
from psycopg import sql

from einmal.postgresql import sqlstates
from einmal.sinks.postgres.modes import WRITING
from einmal.sinks.postgres.session import Session
from einmal.sinks.rejections import Rows

AMONG_CHOSEN: Final = sql.SQL("{} = ANY(current_setting('einmal.chosen')::bigint[])")
"""The condition for the rows of an attempt: the text of its statements stays the same."""
_ALLOWED: Final = sql.SQL("SELECT has_language_privilege(oid, 'USAGE') FROM pg_language WHERE lanname = 'plpgsql'")
_SUSPECTS: Final = sql.SQL(
    "SELECT current_setting('einmal.suspects')::bigint[], current_setting('einmal.errors')::text[],"
    " current_setting('einmal.tried')::integer"
)
_BLOCK: Final = """
#variable_conflict use_column
DECLARE
    numbers CONSTANT bigint[] := {numbers};
    suspects bigint[] := '{{}}';
    errors text[] := '{{}}';  -- of the suspects, what is equal where the reason is; empty: later rows may matter
    failed_alone boolean;
    code text; message text; nsp text; rel text; col text; rule text; kind text; called text;
    start integer := 1;
    stop integer := cardinality(numbers);  -- where the shortest group from start ends that has failed; 0: none has
    size integer := greatest(stop / 2, 1);
    deadline CONSTANT timestamptz := clock_timestamp() + interval '1 second';
BEGIN
    WHILE start <= cardinality(numbers) LOOP
        failed_alone := false;
        PERFORM set_config('einmal.chosen', CAST(numbers[start : start + size - 1] AS text), true);
        BEGIN
            {work}
            SET CONSTRAINTS ALL IMMEDIATE;
            start := start + size;
        EXCEPTION WHEN OTHERS OR assert_failure THEN
            IF (left(SQLSTATE, 2) <> ALL ({classes}) OR SQLSTATE = ANY ({others})) AND SQLSTATE <> ALL ({states}) THEN
                RAISE;
            END IF;
            stop := start + size - 1;
            failed_alone := stop = start;
            IF failed_alone THEN
                GET STACKED DIAGNOSTICS code = RETURNED_SQLSTATE, message = MESSAGE_TEXT, nsp = SCHEMA_NAME,
                    rel = TABLE_NAME, col = COLUMN_NAME, rule = CONSTRAINT_NAME, kind = PG_DATATYPE_NAME,
                    called = PG_EXCEPTION_CONTEXT;
            END IF;
        END;
        IF failed_alone THEN
            suspects := suspects || numbers[start];
            errors := errors || CASE
                -- In the server's language, the line has the statement.
                WHEN code <> {depends} AND split_part(called, chr(10), 1) ~ '(INSERT|MERGE|UPDATE) ' THEN CAST(ROW(code,
                    CASE WHEN code = ANY ({plain}) THEN message END, nsp, rel, col, rule, kind, called) AS text)
                ELSE '' END;
            start := start + 1;
        END IF;
        IF stop >= start THEN
            size := greatest((stop - start + 1) / 2, 1);
        ELSE
            stop := 0;
            size := greatest(least(start / (cardinality(suspects) + 1), cardinality(numbers) - start + 1), 1);
        END IF;
        -- One statement would else be longer than a statement_timeout allows.
        EXIT WHEN start > 1 AND clock_timestamp() > deadline;
    END LOOP;
    PERFORM set_config('einmal.suspects', CAST(suspects AS text), true);
    PERFORM set_config('einmal.errors', CAST(ARRAY(
        SELECT CASE each WHEN '' THEN '' ELSE encode(sha256(convert_to(each, 'UTF8')), 'hex') END
        FROM unnest(errors) WITH ORDINALITY AS e(each, n) ORDER BY n) AS text), true);
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
        # In the block's own text they are planned once; by EXECUTE they would be for each attempt.
        self._work = sql.SQL(" ").join(sql.SQL(f"{text};") for text in texts)
        self._tried = tried
        self._states: set[str] = set()

    @property
    def is_allowed(self) -> bool:
        """Whether the server has the language, and the role may use it. Raises SinkFailed."""
        return self._session.execute(WRITING, _ALLOWED).fetchall() == [(True,)]

    def attempt(self, rows: Rows) -> psycopg.Error | None:
        """Try these rows together, from the client. Raises SinkFailed."""
        chosen = sql.SQL("SELECT set_config('einmal.chosen', CAST({}::bigint[] AS text), true)")
        return self._tried([chosen.format(sql.Literal(list(rows))), *self._statements])

    def narrow(self, rows: Rows) -> tuple[Sequence[tuple[int, str]], Rows] | None:
        """See ``rejections.Narrow``. Raises SinkFailed."""
        block = sql.SQL(_BLOCK).format(
            numbers=sql.Literal(list(rows)),
            work=self._work,
            classes=_texts({*sqlstates.OF_ROWS, sqlstates.RAISED}),
            others=_texts({*sqlstates.NOT_OF_ROWS}),
            states=_texts(self._states),
            plain=_texts({*sqlstates.WITHOUT_VALUES}),
            depends=sql.Literal(sqlstates.FOREIGN_KEY_VIOLATION),
        )
        error = self._tried([sql.SQL("DO LANGUAGE plpgsql {}").format(sql.Literal(self._session.text(block)))])
        if error is not None:
            # A function has raised it. The client tries the halves, and the block knows this SQLSTATE from now on.
            self._states.add(error.sqlstate or "")
            return None
        ((suspects, errors, tried),) = self._session.execute(WRITING, _SUSPECTS).fetchall()
        return list(zip(suspects, errors, strict=True)), rows[tried:]


def _texts(values: set[str]) -> sql.Composed:
    return sql.SQL("{}::text[]").format(sql.Literal(sorted(values)))
