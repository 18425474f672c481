"""Asynchronous PPO."""
