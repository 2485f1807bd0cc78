"""Why a pipeline did not start, or ended.

PipelineError
├── PipelineRefused     it must not run like this: nothing was written; the text says what disagrees and what to do
│   └── PreflightFailed what is missing on the cluster or in Spark, all of it at once
├── PipelineFenced      another instance runs under its transactional.id, or a batch outlived the transaction's timeout
├── PipelineFailed      a batch could not be written; it is aborted, and the next start writes it again
└── BatchLost           at most once: a batch was begun and not finished; the next start goes on behind it
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from einmal.client.errors import KafkaError


class PipelineError(Exception):
    def __init__(self, reason: str, hint: str = "") -> None:
        super().__init__(f"{reason}\nhint: {hint}" if hint else reason)
        self.reason = reason
        self.hint = hint


class PipelineRefused(PipelineError):
    pass


class PreflightFailed(PipelineRefused):
    def __init__(self, missing: Sequence[tuple[str, str]], what: str = "the pipeline cannot start") -> None:
        lines = [f"  - {each}\n    hint: {hint}" if hint else f"  - {each}" for each, hint in missing]
        super().__init__("\n".join([f"{what}, {len(missing)} thing(s) are missing:", *lines]))
        self.missing = tuple(missing)


class PipelineFenced(PipelineError):
    pass


class PipelineFailed(PipelineError):
    pass


class BatchLost(PipelineError):
    pass


_LAST_ERROR = re.compile(
    r"^(?:[a-z_]\w*\.)*((?<=einmal\.client\.errors\.)[A-Z]\w*|"
    r"[A-Z]\w*(?:Error|Exception|Refused|Fenced|Loss|Failed)): (.+)(?:\nhint: (.+))?",
    re.MULTILINE,
)


def reason_of(error: BaseException) -> str:
    """The one line that says what went wrong. Spark wraps a task's error in the traces of several processes."""
    text = str(error)
    if isinstance(error, KafkaError):
        return text
    # The innermost Python error is the last one of the first traceback; what follows are Java's frames.
    python = text.split("\n\tat ")[0]
    found = _LAST_ERROR.findall(python)
    if found:
        kind, message, hint = found[-1]
        return f"{kind}: {message.strip()}" + (f" ({hint.strip()})" if hint else "")
    first = text.strip().splitlines()
    return f"{type(error).__name__}: {first[0] if first else ''}"
