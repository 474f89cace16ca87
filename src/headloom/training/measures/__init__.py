"""How good a model is: measures of corpora, their intervals, and tests of two models."""
