"""Writers of a run's numbers, one per file; `table` lists them."""
