"""Faults on real processes: campaigns that kill, pause and restart them by a seed, and check the outcome.

``processes`` starts, finds and kills processes by pid, ``instances`` manages those of one program, and
``reporting`` those that exchange JSON lines with their campaign. ``campaign`` has the phases of a campaign and draws
its faults from a seed, ``report`` counts the faults and collects what is wrong, ``waiting`` awaits conditions with a
deadline. ``cluster_faults`` takes the faults of processes to a cluster of ``einmal.local``, ``damage`` flips bits and
cuts files, and ``proxy`` injects faults into single requests of a client. ``injector`` is what draws faults by a seed:
``connection_faults`` (through the proxy), ``own_cluster`` and ``command``; ``run`` lets several of them do it.
"""
