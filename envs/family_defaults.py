"""Values that several families start from, stated once."""

from __future__ import annotations

from typing import Any

SEVERAL_EPOCHS: dict[str, Any] = {
    "ppo_epochs": 4,
    "with_vtrace": False,
    "ppo_clip_ratio": 0.2,
    "ppo_clip_value": 1000.0,
    "learning_rate": 1e-3,
    "exploration_loss_coeff": 0.01,
    "max_grad_norm": 1.0,
    "adam_eps": 1e-5,
}
"""PPO with several epochs over small minibatches, for a small network."""
