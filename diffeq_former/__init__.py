"""Continuous-depth transformers: weights generated over time, depth integrated."""
