"""Where the patches of images stand among the tokens of a text, family by family."""
