"""Requests of one node to another, and how nodes authenticate to each other."""
