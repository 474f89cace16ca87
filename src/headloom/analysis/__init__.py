"""Reading attention graphs: what each head is for, and where the information went."""
