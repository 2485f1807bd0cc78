"""Operating a pipeline: status, adopt and reset, progress lines, metrics."""
