"""How retries follow one another: soon at first, then ever later.

The first pause is a tenth of ``retry.backoff.ms``, and each further one half as long again as the one before. So what
takes T to pass, the election of a leader for example, is noticed within half of T more, and a broker that is gone for
long is asked ever less often. Pure.
"""

from __future__ import annotations

from typing import Final

_GROWTH: Final = 1.5
_EXPONENT_MAX: Final = 40
_FIRST_SHARE: Final = 10


def first_pause_ms(retry_backoff_ms: int) -> int:
    """The first pause of a series, from the setting. Never none: a retry that waits for nothing is a busy loop."""
    return max(1, retry_backoff_ms // _FIRST_SHARE)


def pause_ms(pauses_before: int, first_ms: int, longest_ms: int) -> int:
    """The next pause of a series that begins with ``first_ms``."""
    return int(min(first_ms * _GROWTH ** min(pauses_before, _EXPONENT_MAX), max(first_ms, longest_ms)))
