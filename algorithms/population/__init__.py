"""Population-based training as pure functions: objectives and random numbers in, decisions out."""
