"""Word alignment: the source word of each target word."""
