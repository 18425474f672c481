"""Options of the synthetic environments, which their family declares and their simulators read."""

from __future__ import annotations

from dataclasses import dataclass

from appo.utils.options import option

BAD_DATA = ("nan_observation", "inf_observation", "nan_reward", "shape", "dtype")
_FAULTY = "crashing, hanging, exit, bad_data"


@dataclass(frozen=True)
class SyntheticOptions:
    """How the synthetic environments are built; each uses those that concern it."""

    synthetic_episode_length: int = option(20, "Steps in an episode", minimum=1)
    synthetic_size: int = option(4, "Choices of the discrete actions", minimum=2)
    synthetic_delay: int = option(5, "memory: blank steps between the cue and the question", minimum=0)
    synthetic_curriculum_frames: int = option(
        0, "lock: frames of the run over which its length grows from one dial to all; 0: all at once", minimum=0
    )
    synthetic_action_size: int = option(1, "continuous: numbers in an action", minimum=1)
    synthetic_image_size: int = option(40, "image, dict: height and width of the images", minimum=2)
    synthetic_num_agents: int = option(3, "multi: agents", minimum=1)
    synthetic_frames_per_step: int = option(1, "Frames that a step reports to have covered", minimum=1)
    synthetic_step_ms: float = option(1.0, "slow, uneven: how long a step takes, uneven: on average", minimum=0.0)
    synthetic_reset_ms: float = option(0.0, "slow, uneven: how long a reset takes", minimum=0.0)
    synthetic_slow_env: int = option(-1, "slow: the env_id of the one that takes --synthetic_slow_ms; -1: none")
    synthetic_slow_ms: float = option(20.0, "slow: how long a step of that one takes", minimum=0.0)
    synthetic_busy: bool = option(False, "slow, uneven: compute instead of sleeping, as a simulator does")
    synthetic_fault_probability: float = option(
        0.0, f"{_FAULTY}, unreliable_cartpole: chance of the fault in each step", minimum=0.0, maximum=1.0
    )
    synthetic_fault_step: int = option(
        -1, f"{_FAULTY}: the step, counted from 0 since it was built, of a certain fault; -1: none"
    )
    synthetic_fault_env: int = option(-1, f"{_FAULTY}: the only env_id to fail; -1: all")
    synthetic_fault_in: str = option(
        "step",
        f"{_FAULTY}: what the fault comes with; reset: in resets, with the chance of a step",
        choices=("step", "reset"),
    )
    synthetic_bad_data: str = option(
        "nan_observation", "bad_data: what is wrong in the step of the fault", choices=BAD_DATA
    )
    synthetic_stall_probability: float = option(
        0.0, "unreliable_cartpole: chance of a stall in each step", minimum=0.0, maximum=1.0
    )
    synthetic_stall_seconds: float = option(
        5.0,
        "hanging: how long the step of the fault takes; unreliable_cartpole: at most, 0.4 of it at least",
        minimum=0.0,
    )
    synthetic_exit_probability: float = option(
        0.0, "unreliable_cartpole: chance that the process ends in a step", minimum=0.0, maximum=1.0
    )
    synthetic_exit_code: int = option(
        7, "exit, unreliable_cartpole: the code that the process ends with", minimum=0, maximum=255
    )
