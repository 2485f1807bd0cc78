"""Records of a measurement: as in a real topic, whose sizes, keys and timestamps vary and whose text compresses; or
equal ones.

They are seeded, and made before the clock starts: making them costs nothing in the measurement.
"""

from __future__ import annotations

import math
import random
import time
from functools import cache
from itertools import accumulate
from typing import Final

from einmal.wire.record_batch import NewRecord

POOL: Final = 5_000
"""Records in turn. Neither a batch nor a compressor's window holds all of them."""
_SEED: Final = 1
_SPREAD: Final = 0.5
"""Standard deviation of a size's logarithm: a tenth of the records has about twice the median or more."""
_WORDS: Final = 5_000
_LETTERS: Final = "etaoinshrdlcumwfgypbvkjxqz"
_SHORTEST: Final = 2
_LONGEST: Final = 12
_CUSTOMERS: Final = 20_000
_LATE_MS: Final = 50


def varied(mean_bytes: int) -> list[NewRecord]:
    """Return ``POOL`` records with values of ``mean_bytes`` on average. Their timestamps increase by 1 ms on average,
    some are late, and none is in the future."""
    chance = random.Random(_SEED)
    # Retention deletes records of long ago, on Apache Kafka after half a minute.
    began_ms = time.time_ns() // 1_000_000 - POOL
    return [
        NewRecord(_key(chance), value, began_ms + number - chance.randrange(_LATE_MS))
        for number, value in enumerate(_values(mean_bytes))
    ]


def equal(size: int) -> list[NewRecord]:
    """Return ``POOL`` records without keys, of one value of random bytes and one timestamp."""
    return [NewRecord(None, random.Random(_SEED).randbytes(size), time.time_ns() // 1_000_000)] * POOL


def texts(sizes: list[int]) -> list[bytes]:
    """Return texts of these sizes, of invented words. As in a language, a few of the words are most of the text (Zipf's
    law)."""
    chance = random.Random(_SEED)
    letters = [1 / rank for rank in range(2, len(_LETTERS) + 2)]
    words = [
        "".join(chance.choices(_LETTERS, letters, k=min(_LONGEST, _SHORTEST + int(chance.expovariate(0.25)))))
        for _ in range(_WORDS)
    ]
    frequencies = list(accumulate(1 / rank for rank in range(1, _WORDS + 1)))
    made = []
    for size in sizes:
        some = chance.choices(words, cum_weights=frequencies, k=size // (_SHORTEST + 1) + 1)
        made.append(" ".join(some).encode()[:size])
    return made


def _key(chance: random.Random) -> bytes:
    return b"customer-%d" % int(chance.expovariate(1 / _CUSTOMERS))


@cache
def _values(mean_bytes: int) -> list[bytes]:
    """The same for every broker and round."""
    chance = random.Random(_SEED)
    middle = math.log(mean_bytes) - _SPREAD**2 / 2
    return texts([max(1, round(chance.lognormvariate(middle, _SPREAD))) for _ in range(POOL)])
