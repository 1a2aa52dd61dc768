"""Decoding: drafting and editing one block on a canvas. Policies see tokens and candidates, never keys and values."""
