"""The version of headloom: a leaf that every floor may import."""

__version__ = "0.1.0"
