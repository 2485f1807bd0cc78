"""Where a checkpoint on this machine is, read without Spark: for what an owner does from outside."""

from __future__ import annotations

import json
import os
from pathlib import Path

from einmal.commit_protocol.batch_plan import ADOPT_ONCE
from einmal.commit_protocol.takeover import Standing
from einmal.spark.protocol.checkpoint import CheckpointError, check_commit_file, parse_offset_log


def standing_of(location: str) -> Standing:
    """``location``: a path, or a ``file:`` URI. Raises CheckpointError."""
    scheme, colon, rest = location.partition(":")
    if colon and scheme != "file":
        raise CheckpointError(f"a checkpoint in {scheme}: cannot be read without Spark\nhint: instead {ADOPT_ONCE}")
    # As Hadoop names it, which is how it is called in the commit record: links are not followed.
    root = Path(os.path.normpath(Path.cwd() / ("/" + rest.lstrip("/") if colon else location)))
    name = f"file:{root}"
    metadata = _read(root / "metadata")
    done = max(_numbers(root / "commits"), default=None)
    query_id = None if metadata is None else str(json.loads(metadata)["id"])
    text = None if done is None else _read(root / "offsets" / str(done))
    if done is None or text is None:
        return Standing(checkpoint=name, query_id=query_id)
    commit_text = _read(root / "commits" / str(done)) or ""
    check_commit_file(commit_text, f"{name}/commits/{done}")
    return Standing(
        checkpoint=name,
        query_id=query_id,
        batch_id=done,
        end=parse_offset_log(text, f"{name}/offsets/{done}").end,
        commit_text=commit_text if (root / "state").exists() else None,
    )


def _read(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.exists() else None


def _numbers(directory: Path) -> list[int]:
    return [int(path.name) for path in directory.iterdir() if path.name.isdecimal()] if directory.exists() else []
