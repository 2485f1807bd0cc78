"""One transaction as a sequence diagram: who asked whom, when, and when each side knew the outcome.

``recorder`` observes a frame proxy, ``exchanges`` has what a request and its answer mean, ``transactions`` divides them
into transactions, ``story`` makes a diagram of one, ``moments`` finds when each side knew, ``text`` and ``svg`` draw.
"""
