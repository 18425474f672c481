"""Several policies, each playing agents of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from appo.algorithms.models.inference import PolicyInference


class SeatedPolicies:
    """Plays like one policy, each row by the policy of its agent."""

    def __init__(self, policies: Sequence[PolicyInference], seats: Sequence[int]) -> None:
        """`seats`: the policy of each agent of an environment."""
        self.model = policies[0].model
        self._policies = policies
        self._seats = torch.from_numpy(np.array(seats))

    def choose(
        self, rows: Tensor, observations: Mapping[str, Tensor], is_first: Tensor, deterministic: bool = False
    ) -> Tensor:
        """See `PolicyInference.choose`; rows of an environment follow each other, one for each agent."""
        policy_of = self._seats[rows % len(self._seats)]
        found: list[tuple[Tensor, Tensor]] = []
        for number, policy in enumerate(self._policies):
            mine = (policy_of == number).nonzero().squeeze(1)
            if len(mine):
                seen = {name: value[mine] for name, value in observations.items()}
                found.append((mine, policy.choose(rows[mine], seen, is_first[mine], deterministic)))
        order = torch.cat([mine for mine, _ in found]).argsort()
        return torch.cat([actions for _, actions in found])[order]
