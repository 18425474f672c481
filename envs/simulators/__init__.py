"""Simulators written out: what a family's `make` imports, together with the engine it needs, and nothing else does."""
