"""The bank across a topic and PostgreSQL: every transfer takes from one and gives to the other.

``writer`` moves money, ``readers`` compare the two all the time, ``campaign`` kills the writer, the broker and the
server.
"""
