"""The cluster's metadata as this node has it: what is committed, and what a change of it does here.

Every committed record is replayed into the image, and each change of the image is then applied to the node's parts. A
broker applies nothing before its image has its own registration: an older one would let it lead what it has lost since,
and take topics it does not know yet for deleted ones. Changes are the active controller's to make, wherever that is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol
from uuid import UUID

from einmal.event_log import EventLog
from einmal.metadata.image import ClusterImage, ImageDelta
from einmal.metadata.records import MetadataRecord
from einmal.security.acl import Acl
from einmal.types import Offset

log = EventLog(__name__)


class Following(Protocol):
    """The parts of the node that the image is applied to."""

    def begin(self, image: ClusterImage, deleted: Mapping[UUID, str]) -> None:
        """Before the first change. ``deleted``: topics whose removal was committed until then, and their names."""

    def apply(self, delta: ImageDelta, image: ClusterImage) -> None: ...


class FollowsAcls(Protocol):
    """Has the ACLs that are committed."""

    def replace(self, acls: Iterable[Acl]) -> None:
        """These are all."""

    def add(self, acl: Acl) -> None: ...

    def remove(self, acl: Acl) -> None: ...


class ClusterMetadata:
    """``authorizer``: follows the image also on a node that is no broker; None: nobody asks for the ACLs."""

    def __init__(self, parts: Following, authorizer: FollowsAcls | None = None) -> None:
        self._parts = parts
        self._authorizer = authorizer
        self._waiting: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []
        self.image = ClusterImage()
        """The committed metadata. The controller's own image may be ahead of it."""
        self.next_offset = Offset(0)
        """Offset of the first record that is not in the image."""
        self.is_applied = False
        """Whether the node follows the image."""
        self.is_current = False
        """Whether this process has learned what is committed since it has started."""
        self._broker_epoch = -1
        self._deleted: dict[UUID, str] = {}
        """Topics whose removal is committed and not applied yet."""

    # --- what is committed ---------------------------------------------------------------------------------------

    def committed(self, records: Sequence[MetadataRecord], next_offset: Offset) -> None:
        """Take in what was committed before ``next_offset``."""
        self.next_offset = next_offset
        self.is_current = True
        delta = self.image.apply(records)
        if self._authorizer is not None:
            for acl, holds in delta.acls:
                (self._authorizer.add if holds else self._authorizer.remove)(acl)
        self._changed(delta)

    def load_snapshot(self, snapshot: Sequence[MetadataRecord], end_offset: Offset, epoch: int) -> None:
        """Take what is in a snapshot for all that was before."""
        log.info(
            "metadata_snapshot_loaded", "a snapshot of the metadata log is loaded", end_offset=end_offset, epoch=epoch
        )
        before, image = self.image, ClusterImage()
        image.apply(snapshot)
        image.version += before.version
        deleted = [
            (topic.name, topic.topic_id) for topic in before.topics.values() if topic.topic_id not in image.topic_names
        ]
        self.image, self.next_offset = image, end_offset
        if self._authorizer is not None:
            self._authorizer.replace(image.acls.values())
        self._changed(_whole(image, deleted))

    def _changed(self, delta: ImageDelta) -> None:
        if self.is_applied:
            self._parts.apply(delta, self.image)
        else:
            self._deleted.update((topic_id, name) for name, topic_id in delta.deleted)
        self._look()
        for done, future in [waiting for waiting in self._waiting if waiting[0]()]:
            self._waiting.remove((done, future))
            if not future.done():
                future.set_result(None)

    def registered(self, broker_epoch: int) -> None:
        """This broker is registered, by the record at the offset that is its epoch."""
        self._broker_epoch = broker_epoch
        self._look()

    def _look(self) -> None:
        """Begin to follow the image, if it has this broker's registration."""
        if not self.is_applied and 0 <= self._broker_epoch < self.next_offset:
            self.is_applied = True
            self._parts.begin(self.image, self._deleted)
            self._deleted.clear()
            self._parts.apply(_whole(self.image, ()), self.image)

    async def until(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Wait until the image is as the condition wants it; False: it was not in time."""
        if condition():
            return True
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = (condition, future)
        self._waiting.append(waiting)
        timer = asyncio.get_running_loop().call_later(seconds, future.cancel)
        try:
            await future
        except asyncio.CancelledError:
            if not future.cancelled():
                raise
            return condition()
        finally:
            timer.cancel()
            if waiting in self._waiting:
                self._waiting.remove(waiting)
        return True

    def stop(self) -> None:
        for _condition, future in self._waiting:
            future.cancel()


def _whole(image: ClusterImage, deleted: Sequence[tuple[str, UUID]]) -> ImageDelta:
    """Everything is new."""
    return ImageDelta(
        topics=dict.fromkeys(image.topics),
        deleted=tuple(deleted),
        configs=dict.fromkeys(image.topics),
        cluster_configs=True,
        brokers=True,
        features=True,
    )
