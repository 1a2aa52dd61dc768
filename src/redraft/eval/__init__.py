"""Evaluation: score and speed of a model measured together, on the same held-out items at every setting."""
