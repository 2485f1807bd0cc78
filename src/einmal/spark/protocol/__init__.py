"""Performing what `einmal.commit_protocol` decides: one query, its batches, its commits."""
