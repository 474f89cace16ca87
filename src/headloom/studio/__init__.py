"""Looking at traces in a browser."""
