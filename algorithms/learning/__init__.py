"""Learning: tensors in, tensors out. No process, no environment, no file."""
