"""Permissions of a sender: ACLs, as handlers ask and as requests describe them."""
