"""Writers in processes of their own, for the tests: they know the driver's identity and nothing else of it."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing.synchronize import Barrier
from typing import Final, NamedTuple

from einmal.types import ErrorCode
from tests.interop.raw import Identity
from tests.interop.topics import Broker
from tests.interop.transaction_driver import Dialect, Writer

_START_S: Final = 180.0
_barriers: Final[list[Barrier]] = []


class Share(NamedTuple):
    """What one writer is to write: to each partition these values, one batch each, sequences from 0."""

    broker: Broker
    transactional_id: str
    topic: str
    dialect: Dialect
    identity: Identity
    values: Mapping[int, Sequence[str]]


@contextmanager
def writer_processes(count: int) -> Iterator[ProcessPoolExecutor]:
    """A pool in which ``count`` shares are written by ``count`` processes at the same time."""
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(count)
    with ProcessPoolExecutor(count, mp_context=context, initializer=_keep, initargs=(barrier,)) as pool:
        yield pool


def write_share(share: Share) -> int:
    """Write in turns to all partitions of the share, and give back the id of this process."""
    (barrier,) = _barriers
    barrier.wait(_START_S)
    with Writer(share.broker, share.transactional_id, share.topic, share.dialect) as writer:
        for sequence in range(max(map(len, share.values.values()))):
            for partition, values in share.values.items():
                written = writer.write_at_last(share.identity, partition, sequence, [values[sequence]])
                assert written.error == ErrorCode.none, written
    return os.getpid()


def _keep(barrier: Barrier) -> None:
    _barriers.append(barrier)
