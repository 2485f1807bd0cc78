"""Compares input and output as multisets: lost, duplicate, invented and aborted output; and their order, where it
matters. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from einmal.checker.history import Anomaly, Key
from einmal.verify.pipeline.mapping import InputRecord, InputRecords, OutputMapping

Output = tuple[Key, int, str]
"""Partition, offset and value of an output record."""


class MissingOutput:
    """Values of the output that have not come yet, and their ``count``."""

    def __init__(self, wanted: Mapping[str, int], canonical: Callable[[str], str]) -> None:
        self._missing = dict(wanted)
        self._canonical = canonical
        self.count = sum(wanted.values())

    def came(self, outputs: Iterable[Output]) -> None:
        for _, _, text in outputs:
            value = self._canonical(text)
            if self._missing.get(value):
                self._missing[value] -= 1
                self.count -= 1


class OutputComparison:
    """``outputs``: those that a ``read_committed`` reader got. Raises MappingWrong."""

    def __init__(
        self,
        locate: Callable[[InputRecord], str],
        inputs: InputRecords,
        mapping: OutputMapping,
    ) -> None:
        """``locate``: where an input record is, in words."""
        self._locate = locate
        self._canonical = mapping.canonical
        self._sources = self._by_value(inputs.wanted, mapping)
        self._aborted = self._by_value(inputs.aborted, mapping)
        self._optional = self._optional_values(inputs.first, mapping)
        self._is_ordered = inputs.is_ordered

    @property
    def wants_output(self) -> bool:
        """Whether anything has to be there."""
        return bool(self._sources)

    def _optional_values(self, first: Sequence[tuple[InputRecord, ...]], mapping: OutputMapping) -> Counter[str]:
        """How often a value may be there beside those of other records."""
        counts: Counter[str] = Counter()
        for alternatives in first:
            values = (value for values in mapping.outputs(alternatives) for value in values)
            counts.update({self._canonical(value) for value in values})
        return counts

    def _by_value(self, inputs: Sequence[InputRecord], mapping: OutputMapping) -> dict[str, list[InputRecord]]:
        sources: dict[str, list[InputRecord]] = defaultdict(list)
        for record, values in zip(inputs, mapping.outputs(inputs), strict=True):
            for value in values:
                sources[self._canonical(value)].append(record)
        return sources

    def anomalies(self, outputs: Sequence[Output], *, is_complete: bool = True) -> Iterator[Anomaly]:
        """``is_complete``: nothing more will come, so what is missing is lost."""
        by_value: dict[str, list[Output]] = defaultdict(list)
        for output in outputs:
            by_value[self._canonical(output[2])].append(output)
        for value, records in by_value.items():
            sources = self._sources.get(value, [])
            written = dict.fromkeys(text for _, _, text in records)
            at = ", ".join(f"{key} {offset}" for key, offset, _ in records)
            optional = self._optional[value]
            if len(records) <= len(sources) + optional:
                continue
            if not sources and not optional and (aborted := self._aborted.get(value)):
                detail = f"{value} is there, at {at}; it comes from an aborted transaction: {self._named(aborted)}"
                yield Anomaly("aborted-output", detail, (*written, *(source.value for source in aborted)))
            elif not sources and not optional:
                yield Anomaly("invented-output", f"no input record becomes {value}, at {at}", (*written,))
            else:
                times = f"{len(records)} times instead of {len(sources) + optional}"
                detail = f"{value} is there {times}, at {at}; it comes from {self._named(sources)}"
                yield Anomaly("duplicate-output", detail, (*written, *(source.value for source in sources)))
        for value, sources in self._sources.items() if is_complete else ():
            missing = len(sources) - len(by_value.get(value, ()))
            if missing > 0:
                detail = f"{value} is missing {missing} times; it comes from {self._named(sources)}"
                yield Anomaly("lost-output", detail, (value, *(source.value for source in sources)))

        if self._is_ordered:
            yield from self._reordered(by_value)

    def _reordered(self, by_value: Mapping[str, Sequence[Output]]) -> Iterator[Anomaly]:
        """Values that one input record becomes, and that are there once, by the keys of their records and by partition.

        Those of one record have no order among each other.
        """
        last: dict[tuple[str, Key], tuple[Output, InputRecord]] = {}
        before: dict[tuple[str, Key], tuple[Output, InputRecord]] = {}
        for value, sources in self._sources.items():
            outputs = by_value.get(value, ())
            if len(sources) != 1 or len(outputs) != 1:
                continue
            output, source = outputs[0], sources[0]
            at = source.key, output[0]
            is_next = at not in last or last[at][1] != source
            if is_next and at in last:
                before[at] = last[at]
            if at in before:
                (key, offset, text), earlier = before[at]
                if output[1] < offset:
                    named = self._named([earlier, source])
                    detail = f"{output[2]} is at {key} {output[1]}, before {text} at {offset}; they come from {named}"
                    yield Anomaly("reordered-output", detail, (text, output[2], earlier.value, source.value))
            if is_next or output[1] > last[at][0][1]:
                last[at] = output, source

    def missing(self) -> MissingOutput:
        """Everything that has to be there."""
        return MissingOutput({value: len(sources) for value, sources in self._sources.items()}, self._canonical)

    def _named(self, records: Sequence[InputRecord]) -> str:
        return ", ".join(map(self._locate, records))
