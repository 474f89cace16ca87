"""Training: from random matrices to learned ones, with the way there kept."""
