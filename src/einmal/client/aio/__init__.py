"""The client on asyncio. The same names, blocking, are in ``einmal.client``."""

from einmal.client.aio.admin import Admin
from einmal.client.aio.consumer import Consumer
from einmal.client.aio.producer import Producer, Transaction
from einmal.client.aio.raw import PartitionWriter, RangeReader, TransactionDriver

__all__ = ["Admin", "Consumer", "PartitionWriter", "Producer", "RangeReader", "Transaction", "TransactionDriver"]
