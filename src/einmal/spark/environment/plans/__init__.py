"""Plans of Spark: their nodes, sources, order of rows, and text without secrets."""
