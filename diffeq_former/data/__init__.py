"""Text to batches: sources, tokenizers, prepared datasets, the pipeline. No JAX."""
