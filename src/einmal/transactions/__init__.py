"""The transaction coordinator as a value machine (KIP-98, 360, 890): no sockets, files, clocks or randomness."""
