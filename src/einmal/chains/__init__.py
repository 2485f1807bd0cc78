"""Chains: pipelines, mirrors and ingesters whose outputs are the inputs of others, as one graph."""
