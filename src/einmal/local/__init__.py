"""A cluster of real broker processes on this machine.

``layout`` plans the listeners and settings of each, ``processes`` starts and stops them. ``namespaces``, ``clocks`` and
``disks`` are what faults need around them.
"""
