"""Where each leader epoch begins (KIP-101, KIP-279): ``leader-epoch-checkpoint`` and what it answers.

Epochs and start offsets both strictly rise. The log's batches carry their epochs, so all of this can be rebuilt from
them. Knows no file.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Final

from einmal.types import NO_LEADER_EPOCH, NO_OFFSET, LeaderEpoch, Offset

FILE_NAME: Final = "leader-epoch-checkpoint"
_VERSION: Final = "0"


class LeaderEpochs:
    __slots__ = ("_epochs", "_starts", "latest")

    def __init__(self) -> None:
        self.latest = NO_LEADER_EPOCH
        self._epochs: list[LeaderEpoch] = []
        self._starts: list[Offset] = []

    @classmethod
    def decode(cls, data: bytes) -> LeaderEpochs:
        """Read the text of the file: version, number of entries, then a line "epoch offset" each. Raises ValueError."""
        lines = data.decode().splitlines()
        if len(lines) < 2 or lines[0] != _VERSION or len(lines) != 2 + int(lines[1]):
            raise ValueError("not a leader epoch checkpoint")
        epochs = cls()
        for line in lines[2:]:
            epoch, start = map(int, line.split(" "))
            if epochs._epochs and (epoch <= epochs._epochs[-1] or start <= epochs._starts[-1]):
                expected = f"a leader epoch > {epochs._epochs[-1]} from an offset > {epochs._starts[-1]} on"
                raise ValueError(f"expected {expected}, found epoch {epoch} from offset {start} on")
            epochs._epochs.append(LeaderEpoch(epoch))
            epochs._starts.append(Offset(start))
            epochs.latest = epochs._epochs[-1]
        return epochs

    def encode(self) -> bytes:
        lines = [_VERSION, str(len(self._epochs))]
        lines += [f"{epoch} {start}" for epoch, start in zip(self._epochs, self._starts, strict=True)]
        return ("\n".join(lines) + "\n").encode()

    def assign(self, epoch: LeaderEpoch, start: Offset) -> None:
        """From ``start`` on, batches are of ``epoch``. An epoch that is not newer changes nothing."""
        if epoch <= self.latest:
            return
        # An epoch in which nothing was written is replaced by the one that writes at its start.
        if self._starts and self._starts[-1] >= start:
            self.truncate_to(start)
        self._epochs.append(epoch)
        self._starts.append(start)
        self.latest = epoch

    def end_offset_for(self, epoch: LeaderEpoch, log_end_offset: Offset) -> tuple[LeaderEpoch, Offset]:
        """The largest epoch known that is not above ``epoch``, and where it ends; (-1, -1) when that is unknown."""
        if epoch == NO_LEADER_EPOCH or epoch > self.latest:
            return NO_LEADER_EPOCH, NO_OFFSET
        if epoch == self.latest:
            return epoch, log_end_offset
        following = bisect_right(self._epochs, epoch)
        floor = self._epochs[following - 1] if following else epoch
        return floor, self._starts[following]

    def epoch_of(self, offset: Offset) -> LeaderEpoch:
        """The epoch in which ``offset`` was, or will be, written; -1 when it is older than all that is known."""
        entry = bisect_right(self._starts, offset) - 1
        return self._epochs[entry] if entry >= 0 else NO_LEADER_EPOCH

    def truncate_to(self, offset: Offset) -> None:
        """Forget the epochs that begin at or above ``offset``."""
        entries = bisect_right(self._starts, offset - 1)
        del self._epochs[entries:]
        del self._starts[entries:]
        self.latest = self._epochs[-1] if self._epochs else NO_LEADER_EPOCH

    def advance_start(self, offset: Offset) -> None:
        """Forget the epochs that end at or below ``offset``, the new start of the log."""
        entry = bisect_right(self._starts, offset) - 1
        if entry >= 0:
            del self._epochs[:entry]
            del self._starts[:entry]
            self._starts[0] = offset
