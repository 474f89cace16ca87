"""The version of headloom: a leaf that every floor may import."""

__all__ = ["__version__"]

__version__ = "0.1.0"
