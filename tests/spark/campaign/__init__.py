"""The campaign: pipelines of every kind run on three brokers and a Spark cluster while all of it is killed with -9.

``conductor`` decides by a seed who dies and when, ``driver`` is the program that is killed, ``pipelines`` is what it
runs, ``cluster`` the processes around it. ``verdict`` counts the records in the topics and knows nothing of kills.
"""
