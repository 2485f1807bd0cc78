"""The name of a prepared transaction, which a database commits with its own rows (KIP-939)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Self

from einmal.client.errors import FatalError, InvalidState
from einmal.types import EPOCH_MAX, NO_PRODUCER, ProducerEpoch, ProducerId, ProducerIdAndEpoch

_TEXT: Final = re.compile(r"(\d{1,19}):(\d{1,5})", re.ASCII)
_PRODUCER_ID_MAX: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class PreparedTxnState:
    """Producer id and epoch of a transaction; no two transactions of a transactional.id have the same.

    ``str()`` is the form of the Java client: ``producerId:epoch``, empty for none. ``PreparedTxnState.parse`` reads it.
    """

    producer: ProducerIdAndEpoch = NO_PRODUCER

    @classmethod
    def parse(cls, text: str) -> Self:
        """The state of this text. Raises InvalidState."""
        if not text:
            return cls()
        match = _TEXT.fullmatch(text)
        if match is not None:
            producer_id, epoch = int(match[1]), int(match[2])
            if producer_id <= _PRODUCER_ID_MAX and epoch <= EPOCH_MAX:
                return cls(ProducerIdAndEpoch(ProducerId(producer_id), ProducerEpoch(epoch)))
        raise InvalidState(
            meaning=f"{text!r} is no prepared transaction: it is producerId:epoch, or empty for none",
            what_to_do="store str() of what prepare_transaction() returned, and pass that text unchanged",
        )

    @property
    def has_transaction(self) -> bool:
        return self.producer != NO_PRODUCER

    def __str__(self) -> str:
        return f"{self.producer.producer_id}:{self.producer.producer_epoch}" if self.has_transaction else ""


def commits(prepared: PreparedTxnState, committed: PreparedTxnState, client: ProducerIdAndEpoch) -> bool:
    """Whether a database that has committed this state wants the ``prepared`` transaction committed.

    ``client``: the pair that the producer has now. Raises InvalidState for what is no state: it would abort what the
    database may have committed. Raises FatalError for a state of a later transaction: a successor has prepared it, or
    a program on another cluster, in which some later transaction will have the same.
    """
    if not isinstance(committed, PreparedTxnState):
        raise InvalidState(
            meaning=f"{committed!r} is no PreparedTxnState",
            what_to_do="pass PreparedTxnState.parse(text) of what the database has committed; its text is empty for "
            "none",
        )
    if committed == prepared:
        return True
    producer_id, epoch = committed.producer
    if producer_id == client.producer_id and epoch >= client.producer_epoch:
        raise FatalError(
            detail=f"the database has committed {committed}, this producer has {client.producer_id}:"
            f"{client.producer_epoch}",
            meaning="a later instance has prepared the transaction and fenced this one, or the state is from another "
            "cluster",
            what_to_do="close this producer; if a new one fails in the same way, check bootstrap.servers: on this "
            "cluster the database's state is void, and empty is right",
        )
    return False
