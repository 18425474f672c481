"""Run the learning table: `python -m benchmarks.learning`."""

import sys

from benchmarks.learning.table import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
