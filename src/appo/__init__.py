"""The import root: every module of this project is imported as `appo.<folder>.<module>`.

The folders themselves lie at the top of the checkout, where links lead to them, so that no name but this one is taken
from a user's own code: packages called `envs` or `utils` remain theirs.
"""
