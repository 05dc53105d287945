"""Continuous-depth transformers with weights generated as functions of depth."""
