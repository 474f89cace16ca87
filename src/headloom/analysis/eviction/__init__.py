"""What a smaller cache of keys would have thrown away, and what that costs, on a trace."""
