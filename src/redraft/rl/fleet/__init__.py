"""Rollouts by workers of their own, while the trainer trains: at most some versions of the policy behind."""
