"""From text to batches: sources, tokenizers, datasets, input pipeline. Without JAX."""
