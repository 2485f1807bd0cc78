"""What campaigns of kills share besides ``einmal.chaos``: their command line (``command``)."""
