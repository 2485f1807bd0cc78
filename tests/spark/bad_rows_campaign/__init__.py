"""The campaign of bad rows: a pipeline with a declared format is killed with -9 while one row in a hundred is bad.

``conductor`` sends the rows, lets drivers live and die by a seed, replays the dead letters and compares; ``driver`` is
the program that is killed: it loads payments, or repairs those that were replayed. ``rows`` makes the rows.
"""
