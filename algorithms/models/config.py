"""The options of the networks."""

from __future__ import annotations

from dataclasses import dataclass

from appo.utils.options import ConfigError, option

# Beyond these nothing is learned that less would not learn, and a network takes minutes to build.
MAX_LAYERS, MAX_WIDTH = 32, 32_768


@dataclass(frozen=True)
class ModelConfig:
    """How an observation becomes an action distribution and a value."""

    encoder: str = option(
        "auto",
        "Network that reads images (or, without images, vectors): a file name in algorithms/models/encoders, my_file "
        "for the class Encoder of my_file.py in the current folder, package.module:Class, or a name registered by your "
        "own code. auto picks one by the kind and size of the observation",
    )
    mlp_layers: str = option(
        "512,512",
        "Widths of the layers that read vectors and categories, separated by commas. Wider learns finer distinctions "
        "and costs the square in time",
    )
    encoder_extra_fc_layers: int = option(
        1,
        "Fully connected layers of hidden_size between the encoders and the recurrent core. 0 hands the concatenated "
        "features on as they are, which makes the core large after a convolution",
        minimum=0,
        maximum=MAX_LAYERS,
    )
    hidden_size: int = option(
        512,
        "Width of the fully connected layers and of the recurrent state. Larger remembers more and slows every step",
        minimum=1,
        maximum=MAX_WIDTH,
    )
    nonlinearity: str = option(
        "elu",
        "Activation after every layer but the heads; tanh suits small control tasks",
        choices=("elu", "relu", "tanh"),
    )
    policy_initialization: str = option(
        "orthogonal",
        "How weights start. orthogonal preserves the length of what passes through",
        choices=("orthogonal", "xavier_uniform"),
    )
    policy_init_gain: float = option(
        1.0,
        "Factor on all initial weights but those of the heads. Larger starts with stronger, more saturated features",
        minimum=0.0,
        maximum=1000.0,
    )
    use_rnn: bool = option(
        True, "Give the policy a memory. Needed when one observation does not tell the state; slower when it does"
    )
    rnn_type: str = option(
        "gru", "Kind of memory; lstm has a third more weights and twice the state", choices=("gru", "lstm")
    )
    rnn_num_layers: int = option(
        1, "Recurrent layers on top of each other. Each adds a step's cost and a state", minimum=1, maximum=MAX_LAYERS
    )
    rnn_chrono_init: int = option(
        0,
        "Recurrent units begin by remembering for 1 to this many steps, each for a time of its own: about as many as "
        "may lie between a cue and its use. 0: gates start half open, and a unit forgets within a few steps",
        minimum=0,
        maximum=100_000,
    )
    actor_critic_share_weights: bool = option(
        True,
        "One encoder and core for policy and value. False doubles the cost and keeps a large value loss from "
        "disturbing the policy",
    )
    critic_sees_time: bool = option(
        False,
        "The critic, not the policy, is told how many steps the episode has lasted: where episodes end after a set "
        "time that observations do not show, values need it. Only with actor_critic_share_weights=False",
    )
    adaptive_stddev: bool = option(
        True,
        "Continuous actions: True: the network chooses the standard deviation by observation, False: one is learned",
    )
    initial_stddev: float = option(
        1.0,
        "Continuous actions: standard deviation at the start, in units in which the action range is [-1, 1]. Larger "
        "explores more at first",
        minimum=0.01,
        maximum=7.0,
    )
    use_spectral_norm: bool = option(
        False, "Divide the weights of the encoders by their largest singular value: smoother features, slower learning"
    )
    precision: str = option(
        "auto",
        "Numbers that encoders and recurrent cores compute with; weights, the layer that reads vector observations, "
        "heads and losses are fp32 in any case. bf16 is about twice as fast on GPUs, CPUs with AMX and AMD's with "
        "AVX512_BF16; auto: bf16 there for images and, on a CPU, for layers of 512 by 256 and more, else fp32",
        choices=("auto", "fp32", "bf16"),
    )
    cuda_graphs: bool = option(
        True,
        "On a GPU, capture what a step of acting or learning does as a CUDA graph: several times as fast for small "
        "networks. False for encoders and losses of your own that keep tensors or counters between "
        "calls, draw random numbers of Python or NumPy, or mix the rows of a batch",
    )
    obs_subtract_mean: float = option(
        0.0, "Subtracted from every pixel of an image before the division by obs_scale", minimum=-1e8, maximum=1e8
    )
    obs_scale: float = option(
        1.0, "Every pixel of an image is divided by this; 255 brings bytes to [0, 1]", minimum=1e-8, maximum=1e8
    )
    normalize_input: bool = option(
        False,
        "Scale vector observations by the mean and deviation seen so far, clipped to [-5, 5]. Images are only scaled, "
        "by obs_scale",
    )
    normalize_returns: bool = option(
        False,
        "Learn values of returns scaled by the mean and deviation seen so far, so the size of rewards matters less",
    )

    def __post_init__(self) -> None:
        _ = self.mlp_widths

    def check_combinations(self) -> None:
        """Refuse options that are fine alone but not together.

        Raises:
            ConfigError: names the options and what would work.
        """
        if self.critic_sees_time and self.actor_critic_share_weights:
            raise ConfigError(
                "critic_sees_time=True needs networks of their own for policy and value: add "
                "--actor_critic_share_weights=False, or --critic_sees_time=False"
            )

    @property
    def recurrent_state_size(self) -> int:
        """Numbers in the recurrent state of one agent row; known without building a network."""
        if not self.use_rnn:
            return 0
        per_layer = self.hidden_size * (2 if self.rnn_type == "lstm" else 1)
        return per_layer * self.rnn_num_layers * (1 if self.actor_critic_share_weights else 2)

    @property
    def mlp_widths(self) -> tuple[int, ...]:
        """The numbers in `mlp_layers`.

        Raises:
            ConfigError: it is not a list of widths.
        """
        words = self.mlp_layers.split(",")
        try:
            widths = tuple(int(word) for word in words) if len(words) <= MAX_LAYERS else ()
        except ValueError:
            widths = ()
        if not widths or min(widths) < 1 or max(widths) > MAX_WIDTH:
            raise ConfigError(
                f"mlp_layers={self.mlp_layers[:80]!r}; allowed: up to {MAX_LAYERS} widths of 1 to {MAX_WIDTH}, "
                "separated by commas, such as '512,512'"
            )
        return widths
