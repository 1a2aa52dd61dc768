"""Reinforcement learning of block-diffusion models by EBPO (docs/rl.md)."""
