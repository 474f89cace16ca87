"""Experiments that run a model: ablation, relevance, interventions."""
