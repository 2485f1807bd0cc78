"""A data file as Iceberg's manifests describe it, with the statistics by which readers skip files.

pyiceberg reads them from the footer. Its bounds are Python's values, which times beyond the years 1 to 9999 have not:
a column with one has no bounds, and no reader skips its file.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from einmal.sinks.staged_files import StagedFile


def data_file(metadata: Any, file: StagedFile) -> Any:
    """Return a file for a table without partitions. Raises OSError, pyarrow.ArrowException."""
    from pyarrow import parquet
    from pyiceberg.io.pyarrow import (
        MetricModeTypes,
        MetricsMode,
        compute_statistics_plan,
        data_file_statistics_from_parquet_metadata,
        parquet_path_to_id_mapping,
    )
    from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
    from pyiceberg.typedef import Record

    footer, schema = parquet.read_metadata(file.path), metadata.schema()
    plan, ids = compute_statistics_plan(schema, metadata.properties), parquet_path_to_id_mapping(schema)
    for name in _without_bounds(footer):
        if plan[ids[name]].mode != MetricsMode(MetricModeTypes.NONE):
            plan[ids[name]] = replace(plan[ids[name]], mode=MetricsMode(MetricModeTypes.COUNTS))
    statistics = data_file_statistics_from_parquet_metadata(footer, plan, ids)
    return DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=file.path.as_posix(),
        file_format=FileFormat.PARQUET,
        partition=Record(),
        file_size_in_bytes=file.size,
        sort_order_id=None,
        spec_id=metadata.default_spec_id,
        equality_ids=None,
        key_metadata=None,
        **statistics.to_serialized_dict(),
    )


def _without_bounds(footer: Any) -> set[str]:
    """The columns with a bound that Python has no value for."""
    names = set()
    for group in map(footer.row_group, range(footer.num_row_groups)):
        for column in map(group.column, range(footer.num_columns)):
            try:
                _ = column.is_stats_set and (column.statistics.min, column.statistics.max)
            except (OverflowError, ValueError):
                names.add(column.path_in_schema)
    return names
