"""From a request frame to its handler, and back to the bytes of its answer."""
