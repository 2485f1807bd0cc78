"""The topics whose metadata a client keeps fresh."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from einmal.client.cores.metadata_cache import MetadataCache


class WantedTopics:
    """``idle``: asked before a refresh for topics that nothing wants any more."""

    def __init__(self, metadata: MetadataCache) -> None:
        self.idle: Callable[[], Iterable[str]] = lambda: ()
        self._metadata = metadata
        self._topics: dict[str, bool] = {}

    def add(self, name: str, *, may_create: bool) -> None:
        self._topics[name] = may_create

    def now(self) -> Mapping[str, bool]:
        """Forget idle topics. Returns the others, with whether brokers may create them."""
        for name in self.idle():
            self._topics.pop(name, None)
            self._metadata.topics.pop(name, None)
        return dict(self._topics)
