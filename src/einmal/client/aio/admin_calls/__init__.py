"""Calls of the admin client, by what they are about."""
