"""Requests and responses of each API as values free of versions, generated from kio's schemas.

Times are milliseconds, ids of zeros are None. A comment behind a field names the versions that have it, where that is
not all. ``tools/generate_messages.py`` has the list of APIs and versions.
"""
