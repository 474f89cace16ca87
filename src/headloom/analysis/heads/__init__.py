"""What each head is for: patterns, measures beside chance, roles."""
