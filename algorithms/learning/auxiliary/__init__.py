"""One auxiliary loss per file; the option --auxiliary_loss names the file."""
