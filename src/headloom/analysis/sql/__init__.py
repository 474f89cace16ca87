"""SQL queries over traces."""
