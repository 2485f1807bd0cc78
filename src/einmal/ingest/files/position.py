"""Positions in files: what is tracked, as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Final

from einmal.ingest.files.content import FileKey
from einmal.ingest.files.tracking import FileCopy, Mark, TrackedFile
from einmal.ingest.source import Position, SourceRefused

_POSITION_MAX: Final = 900_000
"""Bytes of a position: a commit record is one record, of at most max.message.bytes."""
_ENTRY_BYTES: Final = 160
"""Size of one file's entry in a position, without its paths, but with their quotation marks."""
_ENTRY_MAX: Final = 10
"""Values in one file's entry."""


def encode(tracked: Iterable[TrackedFile]) -> dict[str, Any]:
    """A position. Raises SourceRefused for one that is too large."""
    files = sorted(tracked, key=lambda file: file.path)
    paths = [location.path for file in files for location in file.locations()]
    paths += [file.original_path for file in files if file.original_path != file.path]
    count = sum(len(file.locations()) for file in files)
    # As the record has it: other characters than ASCII's take up to 12 bytes.
    size = count * _ENTRY_BYTES + sum(len(json.dumps(path)) - len('""') for path in paths)
    if size > _POSITION_MAX:
        raise SourceRefused(
            f"{count} files are too many for one ingester: its position has about {size} bytes",
            "delete or move files that are ingested, or divide them over several ingesters",
        )
    return {
        "files": [
            [
                *(f.path, *f.key, f.size, *f.read, f.head),
                [[copy.path, *copy.key, *copy.mark] for copy in f.copies],
                *([] if f.original_path == f.path else [f.original_path]),
            ]
            for f in files
        ]
    }


def decode(position: Position | None) -> list[TrackedFile]:
    """Raises SourceRefused."""
    if position is None:
        return []
    try:
        return [_file(entry) for entry in position["files"]]
    except (KeyError, TypeError, ValueError) as error:
        raise SourceRefused(
            f"the recorded position is not one in files: {error!r:.200}",
            "ingest the files under another name",
        ) from error


def _file(entry: list[Any]) -> TrackedFile:
    # What was recorded before there were first paths has none.
    path, device, inode, generation, size, read, fingerprint, head, copies, first_path = (*entry, entry[0])[:_ENTRY_MAX]
    location = _copy([path, device, inode, generation, read, fingerprint])
    if not isinstance(head, str) or not isinstance(first_path, str) or type(size) is not int or len(entry) > _ENTRY_MAX:
        raise ValueError(entry)
    return TrackedFile(location.path, location.key, size, location.mark, head, tuple(map(_copy, copies)), first_path)


def _copy(entry: list[Any]) -> FileCopy:
    path, device, inode, generation, offset, fingerprint = entry
    texts, numbers = (path, fingerprint), (device, inode, offset)
    if not all(isinstance(text, str) for text in texts) or not all(type(number) is int for number in numbers):
        raise ValueError(entry)
    if generation is not None and type(generation) is not int:
        raise ValueError(entry)
    return FileCopy(path, FileKey(device, inode, generation), Mark(offset, fingerprint))
