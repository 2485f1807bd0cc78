"""A cluster of real broker processes on this machine.

``layout`` says who listens where and which settings each has, ``processes`` starts and ends them.
"""
