"""Environments: one protocol, adapters to it, and one file per family."""
