"""One client for all that a process writes in its transactions, kept from one to the next."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from einmal.client import PartitionWriter
from einmal.types import ProducerIdAndEpoch, TransactionVersion


class TransactionWriter:
    def __init__(self, client: Mapping[str, str], transactional_id: str) -> None:
        """``client``: settings under Kafka's names."""
        self._client = client
        self._id = transactional_id
        self._writer: PartitionWriter | None = None

    @contextmanager
    def begun(self, identity: ProducerIdAndEpoch, version: TransactionVersion) -> Iterator[PartitionWriter]:
        """To append and to flush batches of one transaction. After an error its connections are not used again."""
        writer, self._writer = self._writer or PartitionWriter(self._client), None
        try:
            writer.begin(identity, self._id, version)
            yield writer
        except BaseException:
            writer.close()
            raise
        self._writer = writer

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
