"""Where output goes: Kafka topics, databases, lake tables; each with the commit record in the transaction of the rows.

``target`` is the interface, ``kinds`` finds a target by the word of its type. A target of your own implements
``Destination`` and ``Target``, and is named by its import path.
"""
