"""What lies beside an exported policy: where it comes from, what goes in and out, and a program that runs it."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from appo.algorithms.checkpoints import Checkpoint
from appo.algorithms.evaluation.export import CHECKED_BATCHES, ONNX, TOLERANCE, Exported
from appo.algorithms.evaluation.exported_policy import (
    NEXT_RECURRENT_STATE,
    RECURRENT_STATE,
    ExportedPolicy,
    Port,
)
from appo.algorithms.evaluation.loading import RestoredPolicy
from appo.algorithms.train_config import TrainConfig
from appo.envs.api import ACTION_MASK
from appo.utils.options import to_text

_ROOMS = ("env", "learning", "model", "sampling", "family", "auxiliary")  # whose options shape what was learned
_MACHINE = ("num_workers", "worker_num_splits", "num_envs_per_worker")  # how fast, not what

_SESSION = """\
session = onnxruntime.InferenceSession({file})
OUTPUTS = [output.name for output in session.get_outputs()]


def run(inputs):
    return dict(zip(OUTPUTS, session.run(OUTPUTS, inputs)))
"""
_PROGRAM = """\
policy = torch.export.load({file}).module()


def run(inputs):
    outputs = policy({{name: torch.from_numpy(array) for name, array in inputs.items()}})
    return {{name: value.numpy() for name, value in outputs.items()}}
"""


def model_card(restored: RestoredPolicy, exported: Exported, command: str) -> str:
    """The card in Markdown; `command` made the file."""
    config, checkpoint, policy = restored.config, restored.checkpoint, exported.policy
    facts = {
        "environment": f"`{config.env.env}`",
        "experiment": f"`{config.run.experiment}`, checkpoint `{checkpoint.path.name}`",
        "frames": f"{checkpoint.env_frames} of the simulator, {checkpoint.train_step} optimizer steps",
        "returns": _told_returns(checkpoint),
        "observations": f"`{restored.spaces[0]}`",
        "actions": f"`{restored.spaces[1]}`",
        "checked": f"batches of {', '.join(map(str, CHECKED_BATCHES))} against the policy: "
        f"largest difference {exported.largest_difference:.1e} "
        f"(allowed: {TOLERANCE:g}, in proportion beyond 1)",
        "made by": f"`{command}`",
    }
    lines = [f"# {exported.path.name}", "", "| | |", "| --- | --- |"]
    lines += [f"| {name} | {_cell(fact)} |" for name, fact in facts.items()]
    lines += ["", "## Inputs and outputs", "", "N agent rows at once, any number of them.", ""]
    lines += [*_table("input", policy.inputs), "", *_table("output", policy.outputs)]
    lines += ["", "## Use", "", "```python", example(exported).rstrip(), "```", "", "## Options", ""]
    options = changed_options(config)
    lines += ["| option other than its default | value |", "| --- | --- |"]
    lines += [f"| `{name}` | {_cell(to_text(value))} |" for name, value in options.items()]
    return "\n".join(lines) + "\n"


def example(exported: Exported) -> str:
    """A program that runs the file, without this project."""
    policy, is_onnx = exported.policy, exported.path.suffix == ONNX
    opening = _SESSION if is_onnx else _PROGRAM
    lines = ["import numpy as np", "import onnxruntime" if is_onnx else "import torch", ""]
    lines += [*opening.format(file=_quoted(exported.path.name)).splitlines(), "", ""]
    lines += [*_act(policy), "", ""]
    by_keys = {port.path: _zeros(port) for port in policy.inputs if port.path}
    seen = _nested(by_keys) if by_keys else _zeros(policy.inputs[0])
    lines.append(f"observation = {seen}  # of env.reset()")
    if _mask_of_infos(policy):
        (mask,) = [port for port in policy.inputs if port.name == ACTION_MASK]
        lines.append(f"{ACTION_MASK} = np.ones({mask.shape}, np.{mask.dtype})  # of the infos")
    if policy.state_size:
        lines.append(f"state = np.zeros((1, {policy.state_size}), np.float32)  # where an episode begins")
    result = "action, state" if policy.state_size else "action"
    lines += ["for _ in range(3):", f"    {result} = act({', '.join(_arguments(policy))})"]
    lines += ["    print(action)  # for env.step(action)"]
    return "\n".join(lines) + "\n"


def changed_options(config: TrainConfig) -> dict[str, Any]:
    """The options other than their declared defaults that shaped what was learned."""
    rooms = [getattr(config, name) for name in _ROOMS]
    values = {
        field.name: (getattr(room, field.name), field.default) for room in rooms for field in dataclasses.fields(room)
    }
    return {name: value for name, (value, default) in values.items() if value != default and name not in _MACHINE}


def _act(policy: ExportedPolicy) -> list[str]:
    """The function of the example that decides one step of one agent."""
    lines = [f"def act({', '.join(_arguments(policy))}):", "    inputs = {"]
    for port in policy.inputs:
        keys = "".join(f"[{_quoted(key)}]" for key in port.path)
        source = f"np.asarray(observation{keys}, np.{port.dtype})[None]"
        if port.name == RECURRENT_STATE:
            source = "state"
        elif port.name == ACTION_MASK and _mask_of_infos(policy):
            source = f"np.asarray({ACTION_MASK}, np.{port.dtype})[None]"
        lines.append(f"        {_quoted(port.name)}: {source},")
    parts = {part.path: f"outputs[{_quoted(part.name)}][0]" for part in policy.action_parts}
    after = f", outputs[{_quoted(NEXT_RECURRENT_STATE)}]" if policy.state_size else ""
    return [*lines, "    }", "    outputs = run(inputs)", f"    return {_nested(parts, policy.action_space)}{after}"]


def _arguments(policy: ExportedPolicy) -> list[str]:
    """Of the example's function."""
    return ["observation", *[ACTION_MASK] * _mask_of_infos(policy), *["state"] * bool(policy.state_size)]


def _mask_of_infos(policy: ExportedPolicy) -> bool:
    """The mask comes in the infos, not in the observation."""
    return any(port.name == ACTION_MASK for port in policy.inputs[len(policy.observation_parts) :])


def _nested(parts: Mapping[tuple[Any, ...], str], space: Any = None) -> str:
    """Python that builds a nested dict, or as the space says a tuple, of the expressions at its ends."""
    if () in parts:
        return parts[()]
    keys = list(dict.fromkeys(path[0] for path in parts))
    inner = {
        key: _nested(
            {path[1:]: text for path, text in parts.items() if path[0] == key}, None if space is None else space[key]
        )
        for key in keys
    }
    if space is not None and isinstance(space.spaces, tuple):
        return f"({', '.join(inner.values())},)"
    return "{" + ", ".join(f"{_quoted(key)}: {text}" for key, text in inner.items()) + "}"


def _quoted(key: Any) -> str:
    """A key as Python; text in double quotes."""
    return json.dumps(key) if isinstance(key, str) else repr(key)


def _zeros(port: Port) -> str:
    if port.origin:
        return f"np.full({port.shape}, {port.origin}, np.{port.dtype})"
    return f"np.zeros({port.shape}, np.{port.dtype})"


def _table(title: str, ports: Sequence[Port]) -> list[str]:
    lines = [f"| {title} | shape | dtype | meaning |", "| --- | --- | --- | --- |"]
    for port in ports:
        shape = ", ".join(map(str, ("N", *port.shape)))
        lines.append(f"| `{port.name}` | [{shape}] | {port.dtype} | {port.meaning} |")
    return lines


def training_returns(checkpoint: Checkpoint) -> list[float]:
    """Of the newest episodes that a checkpoint tells of; none: it tells of none."""
    run_state = checkpoint.payload.get("run_state")
    episodes = run_state.get("episodes") if isinstance(run_state, dict) else None
    return [float(value) for value in (episodes or {}).get("returns", ()) if math.isfinite(float(value))]


def _told_returns(checkpoint: Checkpoint) -> str:
    returns = training_returns(checkpoint)
    if not returns:
        return "no episode had ended"
    return (
        f"mean {sum(returns) / len(returns):.2f} of the newest {len(returns)} episodes while training, "
        f"{min(returns):.2f} to {max(returns):.2f}; actions were drawn, not the most likely ones"
    )


def _cell(text: str) -> str:
    return text.replace("|", "/").replace("\n", " ")
