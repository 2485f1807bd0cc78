"""What a sender may do: ACLs, as handlers ask and as requests describe them."""
