"""Folders of Transformers as weft's own models: BERT, GPT-2, Llama and Marian."""
