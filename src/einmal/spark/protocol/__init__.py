"""Performing what `einmal.pipeline` decides: one query, its batches, its commits."""
