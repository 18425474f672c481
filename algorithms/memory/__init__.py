"""Shared memory: what lies where, and who may write it."""
