"""The ground floor: the attention mechanism as pure functions of queries, keys and values."""
