"""Version of headloom."""

__version__ = "0.1.0"
