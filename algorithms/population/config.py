"""Options of population-based training: who is replaced by whom, how options are mutated, and when."""

from __future__ import annotations

from dataclasses import dataclass

from appo.utils.options import ConfigError, option


@dataclass(frozen=True)
class PopulationConfig:
    """Population-based training, and the schedule that it found."""

    with_pbt: bool = option(
        False,
        "Population-based training: policies that do badly copy the weights and options of those that do well, and "
        "options are mutated; needs --num_policies of at least 2",
    )
    pbt_period_env_steps: int = option(
        5_000_000,
        "Environment frames of a policy between two decisions about it. Too short and luck decides; the option that "
        "matters most",
        minimum=1,
    )
    pbt_double_period: bool = option(
        False,
        "Double a policy's period, up to eight times as long, whenever the best objective has not risen since its last "
        "decision, and return to the usual one when it has",
    )
    pbt_start_mutation: int = option(
        20_000_000, "Environment frames of a policy before the first decision about it", minimum=0
    )
    pbt_replace_fraction: float = option(
        0.3,
        "Share of the population, rounded up, that counts as the best, and as the worst: each of the worst may copy a "
        "random one of the best",
        minimum=0.0,
        maximum=0.5,
    )
    pbt_replace_reward_gap: float = option(
        0.0,
        "The best has to be better by this share of the worse one's absolute objective before it is copied. Depends on "
        "where an objective has its zero, so it is off: 0",
        minimum=0.0,
    )
    pbt_replace_reward_gap_absolute: float = option(
        1e-6, "The best has to be better by more than this before it is copied", minimum=0.0
    )
    pbt_replace_gap_std: float = option(
        0.5,
        "The best has to be better by this many standard deviations of the population's objectives before it is copied",
        minimum=0.0,
    )
    pbt_mutation_rate: float = option(
        0.15, "Probability that an option is mutated when its policy's turn comes", minimum=0.0, maximum=1.0
    )
    pbt_reset_rate: float = option(
        0.05, "Probability that a mutated option returns to what the run began with instead", minimum=0.0, maximum=1.0
    )
    pbt_perturb_min: float = option(1.05, "Smallest factor by which a mutation multiplies or divides", minimum=1.0)
    pbt_perturb_max: float = option(1.5, "Largest factor by which a mutation multiplies or divides", minimum=1.0)
    pbt_optimize_gamma: bool = option(False, "Mutate gamma as well: the distance of 1 - gamma from 0 is scaled")
    pbt_keep_first: bool = option(False, "Policy 0 keeps the options that the run began with, and only copies weights")
    pbt_target_objective: str = option(
        "true_reward",
        "What policies are ranked by, its mean over the last --stats_avg episodes: true_reward, reward, len, or a "
        "statistic of the environment",
    )
    pbt_start_values: str = option(
        "",
        "JSON file with a list of objects, one per policy, of the options that each begins with; empty: policy 0 "
        "begins with those of the run, the others with mutations of them",
    )
    schedule_file: str = option(
        "",
        "JSON file of options over environment frames that policy 0 follows, as `tools.population --replay` writes it; "
        "not with --with_pbt",
    )

    def check_combinations(self) -> None:
        """Refuse combinations that cannot run.

        Raises:
            ConfigError: the message names what would work.
        """
        if self.pbt_perturb_min > self.pbt_perturb_max:
            raise ConfigError(
                f"pbt_perturb_min={self.pbt_perturb_min:g} is above pbt_perturb_max={self.pbt_perturb_max:g}; "
                f"nearest: --pbt_perturb_max={self.pbt_perturb_min:g}"
            )
        if self.with_pbt and self.schedule_file:
            raise ConfigError("schedule_file and with_pbt=True would both change the same options; leave one out")
        if self.pbt_start_values and not self.with_pbt:
            raise ConfigError("pbt_start_values is for --with_pbt=True")

    def too_late(self, budget: int, spent: int, policies: int, wait: int, *, has_decided: bool) -> str:
        """A warning where the budget ends before decisions come; empty where there is time for them.

        Args:
            budget: frames of all policies, over all resumes.
            spent: of these, by earlier starts. What is left counts as shared equally.
            policies: how many there are.
            wait: frames of a policy until the first decision of this start about any.
            has_decided: earlier starts have. Otherwise a second decision has to come as well: one alone tunes little.
        """
        share, period = (budget - spent) // policies, self.pbt_period_env_steps
        last = wait if has_decided else wait + period
        if last <= share:
            return ""
        if has_decided:
            told = f"the next decision, after {wait} (pbt_period_env_steps)"
        elif wait > share:
            told = f"a decision, the first after {wait} (pbt_start_mutation)"
        else:
            told = f"a second decision, {period} after the first (pbt_period_env_steps)"
        few = max(1, _rounded_down(share // 5))
        words = [f"--train_for_env_steps={spent + policies * last}"]
        if not has_decided and wait > share // 2:
            wait = few
            words.append(f"--pbt_start_mutation={few}")
        if has_decided or wait + period > share:
            words.append(f"--pbt_period_env_steps={few}")
        return (
            f"with_pbt: train_for_env_steps={budget} leaves each of {policies} policies about {share} frames, too few "
            f"for {told}; for example: {words[0]}, or {' '.join(words[1:])}"
        )


def _rounded_down(number: int) -> int:
    """With two significant digits."""
    unit: int = 10 ** max(0, len(str(number)) - 2)
    return number // unit * unit
