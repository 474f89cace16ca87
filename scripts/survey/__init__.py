"""The survey of families: small random models of Transformers, and what headloom catches of
each.
"""
