"""The broker at run time: the machines on their logs, behind a socket. Reaches the world through three seams only."""
