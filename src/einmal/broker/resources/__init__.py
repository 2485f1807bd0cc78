"""Resources that all parts of a node share: turns on the event loop, memory budgets, supervised tasks."""
