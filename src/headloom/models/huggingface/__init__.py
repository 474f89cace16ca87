"""Folders of Transformers as headloom's own models: BERT, GPT-2, Llama and Marian."""
