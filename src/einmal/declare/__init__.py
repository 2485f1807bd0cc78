"""Declarations of users in TOML files, and their meaning. Pure."""
