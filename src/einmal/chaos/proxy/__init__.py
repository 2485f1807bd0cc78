"""A proxy that knows Kafka's frames, in front of any cluster, and injects faults into chosen requests and answers.

``server`` has ``KafkaProxy``, ``links`` the connections through it. ``rules`` decides which request gets which fault,
``frames`` decodes a frame when somebody asks for its content, ``addresses`` keeps clients behind the proxy, and
``refusals`` makes the answers of ``error``; these four have no I/O.
"""
