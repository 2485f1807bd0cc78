"""Who is killed, and when: drawn from a seed, life by life. A life is a driver's, from its start to its death.

Some moments come only in a driver's start, so a kill there is the first of a life; the driver's own death is the last.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from tests.spark.campaign.pipelines import NAMES, STATEFUL
from tests.spark.claim_moments import CLAIM, GRANTED, REPORTED

DRIVER: Final = "driver"
EXECUTOR: Final = "executor"
PYTHON_WORKER: Final = "Python worker"
SPARK_WORKER: Final = "Spark worker"
BROKERS: Final = (
    "leader of output",
    "leader of input",
    "leader of commit record",
    "transaction coordinator",
    "group coordinator",
)

ANY_TIME: Final = "any time"
NAME_TAKEN: Final = "name taken"
MENDING: Final = "before mending"
AROUND: Final = "around EndTxn"
BEFORE: Final = "before EndTxn"
AFTER: Final = "after EndTxn"
IN_A_TASK: Final = (CLAIM, GRANTED, REPORTED)
"""A writer asks for a partition, has got it, has had it written down."""
IN_A_BATCH: Final = ("batch begun", *IN_A_TASK, "output written", BEFORE, AROUND, AFTER, ANY_TIME)
MOMENTS: Final = (NAME_TAKEN, MENDING, *IN_A_BATCH)

_LOCAL_SHARE: Final = 0.4
_START_SHARE: Final = 0.4
_OTHERS: Final = (2, 5)
_WAITS: Final = 0.7


@dataclass(frozen=True)
class Kill:
    """``waits``: whether the pipeline has time to commit a batch before the next kill."""

    victim: str
    moment: str
    pipeline: str
    waits: bool = True

    @property
    def is_of_a_broker(self) -> bool:
        return self.victim in BROKERS


@dataclass(frozen=True)
class Life:
    local: bool
    kills: tuple[Kill, ...]


def lives(chance: random.Random, kills: int, *, on_cluster: bool) -> Iterator[Life]:
    """So many kills in all; the last life's driver stays alive unless the last kill is his."""
    last: Kill | None = None
    while kills > 0:
        life = _life(chance, last, local=not on_cluster or chance.random() < _LOCAL_SHARE)
        life = Life(life.local, life.kills[:kills])
        kills -= len(life.kills)
        last = life.kills[-1]
        yield life


def _life(chance: random.Random, last: Kill | None, *, local: bool) -> Life:
    others = [PYTHON_WORKER, *chance.sample(BROKERS, 2)]
    if not local:
        others += [EXECUTOR, EXECUTOR, SPARK_WORKER]
    found = []
    if _to_mend(last) is not None or chance.random() < _START_SHARE:
        found.append(_at_start(chance, last, others))
    while not (found and found[-1].victim == DRIVER):
        if len(found) > chance.randint(*_OTHERS):
            found.append(Kill(DRIVER, chance.choice(IN_A_BATCH), chance.choice(NAMES)))
        else:
            waits = chance.random() < _WAITS
            found.append(Kill(chance.choice(others), chance.choice(IN_A_BATCH), chance.choice(NAMES), waits))
    return Life(local, tuple(found))


def _at_start(chance: random.Random, last: Kill | None, others: list[str]) -> Kill:
    """Where the driver before died after EndTxn, the start repairs its checkpoint, and can be killed meanwhile."""
    victim = chance.choice([DRIVER, *others])
    pipeline = _to_mend(last)
    if pipeline is not None:
        return Kill(victim, MENDING, pipeline)
    return Kill(victim, NAME_TAKEN, chance.choice(NAMES))


def _to_mend(last: Kill | None) -> str | None:
    """The pipeline whose checkpoint the last kill left behind its output."""
    return last.pipeline if last is not None and last.moment == AFTER and last.pipeline in STATEFUL else None
