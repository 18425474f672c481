"""Factories of environments whose arguments can be known, and one that takes any. None of them is ever called."""


def named(size=3, *, verbose=0, seed=0):
    """Takes what it names."""


def leaves():
    """Its name between colons would be an emoji."""


def anything(**kwargs):
    """Takes all."""


class EzPickle:
    """Receives copies of arguments, as that of Gymnasium."""

    def __init__(self, *args, **kwargs):
        """Takes all."""


class Base:
    """Takes what it names."""

    def __init__(self, size=3):
        """Knows a size."""


class HandsOn(EzPickle, Base):
    """Takes its own, and what its base names."""

    def __init__(self, speed=1, **kwargs):
        """Knows a speed."""
