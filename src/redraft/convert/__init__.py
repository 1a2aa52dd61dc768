"""Autoregressive checkpoints as the start of an editable block-diffusion model."""
