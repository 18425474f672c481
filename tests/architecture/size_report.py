"""The longest files and functions, and the most parameters: `python -m tests.architecture.size_report`, for reviews.

What is long is looked at; no test shapes code by it.
"""

from __future__ import annotations

import statistics

from tests.architecture.source_tree import functions, modules, num_code_lines, num_parameters

SHOWN = 12


def main() -> None:
    """Print all three."""
    found = [(module, name, function) for module in modules() for name, function in functions(module)]
    lengths = {f"{m.path}:{f.lineno} {name}": num_code_lines(m, f) for m, name, f in found}
    parameters = {f"{m.path}:{f.lineno} {name}": num_parameters(f) for m, name, f in found}
    files = {module.path: module.text.count("\n") for module in modules()}
    print(f"functions: {statistics.median(lengths.values()):g} code lines at the median")
    for title, table in (("lines", files), ("code lines", lengths), ("parameters", parameters)):
        print(f"\n{title}")
        for where, number in sorted(table.items(), key=lambda entry: -entry[1])[:SHOWN]:
            print(f"{number:6} {where}")


if __name__ == "__main__":
    main()
