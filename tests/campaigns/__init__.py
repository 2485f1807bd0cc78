"""Campaigns of kills have these in common: their command line (``command``), and Spark drivers as processes
(``spark_driver``), with the drivers' own side of the messages (``reporter``). The rest is ``einmal.chaos``.
"""
