"""Acting on a CPU: a pass over a plain network that returns a function of packed weights."""
