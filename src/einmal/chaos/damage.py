"""Silent damage to the files of a stopped broker, by a seed: a bit flips, or the end of a file is lost."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from einmal.simulation.damage import checked_positions

_LOG: Final = ".log"
_BITS: Final = 8


class NothingToDamage(Exception):
    """The file has no byte whose damage must be detected."""


@dataclass(frozen=True, slots=True)
class FileDamage:
    """``position``: of the byte; of the new end where ``bit`` is None."""

    file: Path
    position: int
    bit: int | None = None

    def __str__(self) -> str:
        if self.bit is None:
            return f"{self.file} truncated to {self.position} bytes"
        return f"{self.file}: bit {self.bit} of byte {self.position} flipped"


def flip_bit(file: Path, seed: int) -> FileDamage:
    """Flip one bit; in a log one that a checksum covers. Raises NothingToDamage."""
    source = random.Random(seed)
    data = bytearray(file.read_bytes())
    position, bit = source.choice(_positions(file, data)), source.randrange(_BITS)
    data[position] ^= 1 << bit
    file.write_bytes(data)
    return FileDamage(file, position, bit)


def truncate(file: Path, seed: int) -> FileDamage:
    """Cut the file; a log within one of its batches. Raises NothingToDamage."""
    data = bytearray(file.read_bytes())
    position = random.Random(seed).choice(_positions(file, data))
    with file.open("r+b") as opened:
        opened.truncate(position)
    return FileDamage(file, position)


def newest_log(data: Path, topic: str, partition: int) -> Path:
    """The last segment with records of a partition, in a broker's data directory. Raises NothingToDamage."""
    segments = sorted((data / f"{topic}-{partition}").glob(f"*{_LOG}"))
    newest = next((segment for segment in reversed(segments) if segment.stat().st_size), None)
    if newest is None:
        raise NothingToDamage(f"{data} has no records of {topic}-{partition}")
    return newest


def _positions(file: Path, data: bytearray) -> list[int]:
    positions = checked_positions(data) if file.suffix == _LOG else list(range(len(data)))
    if not positions:
        raise NothingToDamage(f"{file} has no batch" if data else f"{file} is empty")
    return positions
