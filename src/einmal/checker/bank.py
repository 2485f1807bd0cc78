"""The bank: transfers between accounts, of which a ``read_committed`` reader must never see a half.

A transfer is two entries, a debit and a credit, written in one transaction, and perhaps to two partitions. A reader
that has read a partition as far as it may must have both entries of a transfer inside that partition or none; over all
partitions the balances and what is under way (one entry seen, the other partition not read so far yet) must always add
up to the initial sum; at the end nothing is under way, and every transfer has happened once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from einmal.checker.history import Anomaly


class TransferEntry(NamedTuple):
    """One side of a transfer; ``partition`` and ``partner``: where this one and the other one are written."""

    transfer: str
    account: int
    delta: int
    partition: int
    partner: int


class BankReader:
    """View that one ``read_committed`` reader has had of the bank."""

    def __init__(self, name: str, initial: Mapping[int, int]) -> None:
        self._name = name
        self._total = sum(initial.values())
        self._balances = dict(initial)
        self._open: dict[str, TransferEntry] = {}
        self._done: dict[str, None] = {}
        self._excess = 0
        self.anomalies: list[Anomaly] = []

    def read(self, partition: int, entries: Sequence[TransferEntry]) -> None:
        """All that could be read of a partition at one moment; then look whether the sum still holds."""
        repeated = [entry.transfer for entry in entries if self._apply(entry)]
        halves = [other.transfer for other in self._open.values() if other.partner == other.partition == partition]
        if halves:
            self._report(f"partition {partition} shows one half of {', '.join(halves)}", halves)
        under_way = sum(entry.delta for entry in self._open.values())
        held, wanted = sum(self._balances.values()), self._total + under_way
        # Reported once, not by every read that follows.
        if held != wanted and held - wanted != self._excess:
            self._report(f"the accounts hold {held}, not {wanted}", repeated)
        self._excess = held - wanted

    def _apply(self, entry: TransferEntry) -> bool:
        """Return whether the entry was there already."""
        other = self._open.pop(entry.transfer, None)
        self._balances[entry.account] = self._balances.get(entry.account, 0) + entry.delta
        if entry.transfer in self._done or (other is not None and other.account == entry.account):
            self.anomalies.append(
                Anomaly("duplicate", f"{self._name} saw {entry.transfer} more than once", (entry.transfer,))
            )
            self._done[entry.transfer] = None
            return True
        if other is None:
            self._open[entry.transfer] = entry
        else:
            self._done[entry.transfer] = None
            if other.delta + entry.delta:
                self._report(f"{entry.transfer} takes {other.delta} and gives {entry.delta}", [entry.transfer])
        return False

    def _report(self, detail: str, transfers: Sequence[str] = ()) -> None:
        self.anomalies.append(Anomaly("bank-sum", f"{self._name}: {detail}", tuple(transfers)))

    def finish(self, acknowledged: Mapping[str, str], refused: Sequence[str] = ()) -> list[Anomaly]:
        """Everything has been read: what was asked for must have happened, what was refused must not.

        ``acknowledged``: transfers, each with the position of its order in the log.
        """
        return [*self.anomalies, *self._finish(acknowledged, refused)]

    def _finish(self, acknowledged: Mapping[str, str], refused: Sequence[str]) -> Iterator[Anomaly]:
        for entry in self._open.values():
            detail = f"{self._name} saw only one half of {entry.transfer} at the end"
            yield Anomaly("torn-transaction", detail, (entry.transfer,))
        for transfer, order in acknowledged.items():
            if transfer not in self._done and transfer not in self._open:
                detail = f"{order} was acknowledged, and neither side of its transfer is in any partition: {self._name}"
                yield Anomaly("lost-write", f"{detail} has read all of them to the end", (transfer,))
        for transfer in refused:
            if transfer in self._done:
                yield Anomaly("G1a", f"{self._name} saw {transfer}, which had failed", (transfer,))
