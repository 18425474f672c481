"""The driver: wires a run together, follows it, and ends it."""
