"""The metadata quorum on this node, the active controller, and this broker's membership in the cluster."""
