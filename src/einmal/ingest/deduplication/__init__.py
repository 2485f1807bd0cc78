"""Removing the duplicates that a source makes itself: by a declared business key, within a declared window.

A pure window of keys, kept beside what the transactions commit, and read again from the topics at a start.
"""
