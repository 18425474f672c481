"""Measuring and drawing finished runs."""
