"""The client on asyncio. The same names, blocking, are in ``einmal.client``; imported when first asked for, too."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from einmal.client.habits import missing_class

if TYPE_CHECKING:
    from einmal.client.aio.admin import Admin
    from einmal.client.aio.consumer import Consumer
    from einmal.client.aio.producer import Producer, Transaction
    from einmal.client.aio.raw import PartitionWriter, RangeReader, TransactionDriver

__all__ = ["Admin", "Consumer", "PartitionWriter", "Producer", "RangeReader", "Transaction", "TransactionDriver"]

_LATER: Final = {
    "Admin": "admin",
    "Consumer": "consumer",
    "PartitionWriter": "raw",
    "Producer": "producer",
    "RangeReader": "raw",
    "Transaction": "producer",
    "TransactionDriver": "raw",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise missing_class(__name__, name)
    return getattr(import_module(f"{__name__}.{_LATER[name]}"), name)


def __dir__() -> list[str]:
    return __all__
