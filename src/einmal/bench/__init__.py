"""Figures, never assertions: what the broker does on this machine, beside what we want of it.

``cases`` is the list of what is measured, ``load`` generates it, ``server`` is the process measured.
"""
