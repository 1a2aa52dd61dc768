"""The engine: runs decoding policies on a network with an exact block-causal cache."""
