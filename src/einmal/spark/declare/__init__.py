"""Requests of users, and whether they can hold: declarations, guarantees, the preflight."""
