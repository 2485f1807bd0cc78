"""The blocking client: a facade over the asyncio one, which lives in a background thread of each client."""
