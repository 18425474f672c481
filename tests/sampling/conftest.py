"""What the tests of the sampler share."""

import pytest

from appo.algorithms.sampling.rollout_sampler import SamplerRecipe
from tests.envs.vector.vec_env_cases import descendants


@pytest.fixture
def build():
    """Build samplers, and look that nothing is left of them."""
    built = []

    def begin(env, num_envs=4, workers=2, policy="random", **options):
        recipe = SamplerRecipe(env, num_envs, workers, start_method="fork", **options)
        built.append(recipe.build(policy))
        return built[-1]

    yield begin
    for sampler in built:
        sampler.close()
    assert descendants() == []
