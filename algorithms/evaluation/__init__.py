"""Scoring and watching trained policies."""
