"""Questions to traces in SQL."""
