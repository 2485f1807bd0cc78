"""The front: from the bytes of a connection to the handler of a request, and back."""
