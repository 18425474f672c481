"""Environments that are closed after the test that built them."""

import pytest

from tests.envs.doom_cases import make


@pytest.fixture
def built():
    """Builds Doom environments and closes them after the test."""
    envs = []

    def build(*args, **options):
        envs.append(make(*args, **options))
        return envs[-1]

    yield build
    for env in envs:
        env.close()
