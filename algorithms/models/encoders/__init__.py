"""One encoder per file; the option --encoder names the file."""
