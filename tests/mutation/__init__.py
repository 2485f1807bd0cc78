"""Sampled mutation runs: how much of the core machines their own fast tests hold in place."""
