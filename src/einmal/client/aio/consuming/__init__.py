"""Membership in a group, positions, and fetches that run ahead of them."""
