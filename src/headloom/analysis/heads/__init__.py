"""Roles of heads: patterns, measures compared with chance, roles."""
