"""Options of one policy's learner: how data is cut into gradient steps, and which loss those steps descend.

Which options exist for an auxiliary loss is declared in that loss's own file.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from appo.utils.options import ConfigError, OptionRule, check_value, option, options_of


@dataclass(frozen=True)
class LearningConfig:
    """How the learner turns trajectories into gradient steps."""

    rollout: int = option(
        32,
        "Transitions collected before data is handed to the learner. Longer lets rewards reach further back and costs "
        "memory and freshness",
        minimum=1,
    )
    recurrence: int = option(
        -1,
        "Rows through which gradients flow back in time; -1: the whole rollout. Shorter is cheaper and cuts each "
        "trajectory into chunks that start from the recurrent state stored when acting; minibatches draw chunks, so 1 "
        "shuffles single steps; needs --with_vtrace=False",
        minimum=-1,
    )
    batch_size: int = option(
        1024,
        "Agent steps in one optimizer step: a multiple of the rollout, or of a shorter --recurrence. Larger gives "
        "steadier gradients and fewer steps per second",
        minimum=1,
    )
    num_batches_per_iteration: int = option(
        1,
        "Batches collected before training begins. More decorrelates minibatches and raises the policy lag",
        minimum=1,
        aliases=("num_batches_per_epoch",),
    )
    ppo_epochs: int = option(
        1,
        "Passes over the same data. More learns more from each frame, until the clipped ratio stops it",
        minimum=1,
        aliases=("num_epochs",),
    )
    num_minibatches_to_accumulate: int = option(
        -1,
        "Minibatches that may wait or be collected while the learner trains, before sampling pauses; -1: twice the "
        "batches per iteration; up to one iteration: the next is collected as late as keeps the learner busy; 0: "
        "sampling stops while training. Higher hides uneven speed and raises the policy lag",
        minimum=-1,
    )
    shuffle_minibatches: bool = option(
        True, "Draw trajectories at random into minibatches. Off: in the order of arrival, without copying them"
    )
    max_policy_lag: int = option(
        1000,
        "Rows chosen by weights older than this many optimizer steps are masked. Raise it with many epochs and "
        "minibatches, each of which ages the data that is being collected",
        minimum=0,
    )
    train_in_background_thread: bool = option(
        True,
        "Assemble the next batch while training on this one, where more than the next iteration may be under way. "
        "Off: one after the other, easier to debug",
    )

    learning_rate: float = option(
        1e-4,
        "Adam step size. Higher learns faster until it becomes unstable",
        minimum=0.0,
        maximum=10.0,
        mutate="scale",
    )
    lr_schedule: str = option(
        "constant",
        "How the step size changes: linear_decay reaches 0 when the budget is spent, --train_for_env_steps or "
        "--train_for_seconds, whichever comes first; kl_adaptive_* holds the policy's change near "
        "--lr_schedule_kl_threshold, looking after each minibatch or epoch whose rows were chosen by older weights",
        choices=("constant", "linear_decay", "kl_adaptive_minibatch", "kl_adaptive_epoch"),
    )
    lr_schedule_kl_threshold: float = option(
        0.008,
        "KL divergence per update that the kl_adaptive schedules aim at. Higher lets the policy change faster",
        minimum=0.0,
    )
    gamma: float = option(
        0.99,
        "Discount per step: rewards about 1 / (1 - gamma) steps away still count",
        minimum=0.0,
        maximum=1.0,
        mutate="one_minus",
    )
    gae_lambda: float = option(
        0.95,
        "Without V-trace: 0 trusts the critic (low variance), 1 trusts the sampled returns (no bias)",
        minimum=0.0,
        maximum=1.0,
    )
    advantage_noise: float = option(
        0.0,
        "Advantages are divided by their deviation, or by this share of the absolute mean return where that is larger: "
        "smaller ones are taken for noise of the critic. Higher keeps a policy random for longer where nothing it "
        "tries makes a difference yet, and learns fine differences more slowly",
        minimum=0.0,
        maximum=1.0,
    )
    with_vtrace: bool = option(
        True,
        "Correct advantages and targets for the policy lag, anew in each minibatch. Off: GAE, fixed once per iteration",
    )
    vtrace_rho: float = option(
        1.0,
        "V-trace cap of the ratio at each step: lower learns the value of a policy nearer to the one that acted",
        minimum=0.0,
    )
    vtrace_c: float = option(
        1.0,
        "V-trace cap of the ratio that carries corrections back in time: lower forgets sooner. At most 2, so that "
        "products over a trajectory stay finite",
        minimum=0.0,
        maximum=2.0,
    )
    ppo_clip_ratio: float = option(
        0.1,
        "Trust region: the ratio pi/mu is clipped to [1/(1+c), 1+c], symmetric in log space. Higher allows larger "
        "changes per batch",
        minimum=0.0,
        mutate="scale",
    )
    ppo_clip_value: float = option(
        1.0,
        "Values may move this far from what the actor saw before the loss stops pulling them on; in units of "
        "normalised returns when those are on; inf: as far as they like",
        minimum=0.0,
        mutate="scale",
        may_be_infinite=True,
    )
    value_loss_coeff: float = option(
        0.5, "Weight of the critic against the policy in the loss", minimum=0.0, mutate="scale"
    )
    exploration_loss: str = option(
        "entropy",
        "What keeps the policy random: entropy rewards randomness; symmetric_kl pulls towards the uniform policy, "
        "harder the rarer an action has become",
        choices=("entropy", "symmetric_kl"),
    )
    exploration_loss_coeff: float = option(
        0.003, "Weight of the exploration loss. Higher stays random for longer; 0: off", minimum=0.0, mutate="scale"
    )
    kl_loss_coeff: float = option(
        0.0,
        "Weight of the KL divergence from the policy that acted. Higher keeps updates smaller than clipping alone; "
        "0: off",
        minimum=0.0,
    )
    max_grad_norm: float = option(
        4.0, "Gradients longer than this are scaled down to it; 0: never", minimum=0.0, mutate="scale"
    )
    adam_eps: float = option(
        1e-6, "Adam's epsilon. Higher damps steps of weights whose gradients are tiny", minimum=0.0
    )
    adam_beta1: float = option(
        0.9,
        "Adam's memory of the gradient, about 1 / (1 - beta1) steps",
        minimum=0.0,
        maximum=0.9999,
        mutate="one_minus",
    )
    adam_beta2: float = option(
        0.999, "Adam's memory of the squared gradient, about 1 / (1 - beta2) steps", minimum=0.0, maximum=0.999999
    )
    reward_scale: float = option(
        1.0,
        "Rewards are multiplied by this before clipping; statistics show raw rewards",
        minimum=-1e6,
        maximum=1e6,
    )
    reward_clip: float = option(
        math.inf,
        "Scaled rewards are clipped to plus or minus this. 1 hides how large a reward is; inf: no limit",
        minimum=0.0,
        may_be_infinite=True,
    )
    max_bad_steps: int = option(
        20,
        "Optimizer steps whose loss or gradient is not finite are skipped. More than this many in a row bring back the "
        "last good snapshot, with a warning; when that does not help, the run ends",
        minimum=0,
    )
    auxiliary_loss: str = option(
        "",
        "A further loss term: the name of a file in algorithms/learning/auxiliary, my_loss for my_loss.py in the "
        "current folder, or a module as my_package.my_loss; empty: none. Adds that file's options",
    )

    @property
    def clip_range(self) -> tuple[float, float]:
        """Lower and upper bound for the ratio pi/mu."""
        return 1.0 / (1.0 + self.ppo_clip_ratio), 1.0 + self.ppo_clip_ratio

    @property
    def rows_per_chunk(self) -> int:
        """`recurrence` in rows, with its -1 resolved."""
        return self.rollout if self.recurrence == -1 else self.recurrence

    @property
    def trajectories_per_iteration(self) -> int:
        """Rollouts of one agent that an iteration learns from."""
        return self.num_batches_per_iteration * self.batch_size // self.rollout

    def check_combinations(self) -> None:
        """Refuse options that are fine alone but not together.

        Raises:
            ConfigError: names the options, their values and the nearest that work.
        """
        rows = self.rows_per_chunk
        if rows == 0 or self.rollout % rows:
            divisors = [str(n) for n in range(1, self.rollout + 1) if self.rollout % n == 0]
            raise ConfigError(
                f"recurrence={self.recurrence} does not divide rollout={self.rollout}; allowed: -1, "
                + ", ".join(divisors)
            )
        if self.with_vtrace and rows != self.rollout:
            raise ConfigError(
                f"recurrence={self.recurrence} is shorter than rollout={self.rollout}, which V-trace cannot use; "
                f"set --recurrence=-1 or --with_vtrace=False"
            )
        if self.batch_size % rows:
            name = "rollout" if rows == self.rollout else "recurrence"
            raise ConfigError(
                f"batch_size={self.batch_size} is not a multiple of {name}={rows}; "
                f"nearest: {_nearest_multiples(self.batch_size, rows)}"
            )
        # Data arrive as whole rollouts, so an iteration takes whole ones, however they are cut afterwards.
        needed = self.rollout // math.gcd(self.batch_size, self.rollout)
        if self.num_batches_per_iteration % needed:
            raise ConfigError(
                f"num_batches_per_iteration={self.num_batches_per_iteration} of batch_size={self.batch_size} are not "
                f"whole rollouts of {self.rollout}; nearest: num_batches_per_iteration="
                f"{_nearest_multiples(self.num_batches_per_iteration, needed)}"
            )


class ChangingOption(NamedTuple):
    """An option that may change while training goes on."""

    value: float  # that the run begins with
    rule: OptionRule  # whose `mutate` says how


def changing_options(learning: LearningConfig, auxiliary: Any) -> dict[str, ChangingOption]:
    """By name; of the learner, and of its auxiliary loss, which may be None."""
    configs = [config for config in (learning, auxiliary) if config is not None]
    return {
        field.name: ChangingOption(float(getattr(config, field.name)), rule)
        for config in configs
        for field, rule in options_of(type(config))
        if rule.mutate
    }


def changed(learning: LearningConfig, auxiliary: Any, values: Mapping[str, float]) -> tuple[LearningConfig, Any]:
    """These options with others in the place of some that may change while training goes on.

    Args:
        learning: of a policy.
        auxiliary: options of its auxiliary loss; None: it has none.
        values: by name.

    Raises:
        ConfigError: one is unknown, decides about sizes, or is outside of its range.
    """
    options = changing_options(learning, auxiliary)
    declared = {field.name for field in dataclasses.fields(learning)}
    for name, value in values.items():
        if name not in options:
            what = "cannot change while training goes on" if name in declared else "is no option"
            raise ConfigError(f"{name} {what}; these can be changed: {', '.join(sorted(options))}")
        if not math.isfinite(value):
            raise ConfigError(f"{name}={value} has to be a finite number")
        check_value(name, value, options[name].rule, "a change")
    own = {name: value for name, value in values.items() if name in declared}
    others = {name: value for name, value in values.items() if name not in own}
    result: LearningConfig = dataclasses.replace(learning, **dict[str, Any](own))
    result.check_combinations()
    return result, dataclasses.replace(auxiliary, **others) if others else auxiliary


def _nearest_multiples(number: int, unit: int) -> str:
    below = number // unit * unit
    return ", ".join(str(n) for n in (below, below + unit) if n > 0)
