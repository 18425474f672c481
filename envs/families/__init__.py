"""One environment family per file; the part of --env before the first underscore names the file."""
