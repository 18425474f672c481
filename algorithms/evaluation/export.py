"""Writing a policy to an ONNX or torch.export file, and comparing the file with the policy.

No file is kept that has not answered as the policy does, to the rounding of float32, for batches of several sizes.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from appo.algorithms.evaluation.exported_policy import (
    DISTRIBUTION,
    NEXT_RECURRENT_STATE,
    RECURRENT_STATE,
    VALUE,
    ExportedPolicy,
    value_at,
)
from appo.algorithms.evaluation.loading import RestoredPolicy
from appo.algorithms.specs import ELAPSED_STEPS
from appo.envs.action_layout import ActionLayout
from appo.envs.api import ACTION_MASK
from appo.envs.faults import FAILURES
from appo.envs.observation_layout import ObservationLayout

ONNX, TORCH = ".onnx", ".pt2"
ONNX_PACKAGES = ("onnx", "onnxscript", "onnxruntime")
CHECKED_BATCHES = (1, 3, 7)
TOLERANCE = 1e-5  # of numbers up to 1, and in proportion beyond
_TRACED_ROWS = 2  # torch takes an axis of 1 for a constant

Arrays = dict[str, NDArray[Any]]


class ExportError(ValueError):
    """The policy cannot be written. The message says why, and what would work."""


class Exported(NamedTuple):
    """A file that has been checked."""

    path: Path
    policy: ExportedPolicy
    largest_difference: float  # from the policy itself, see `TOLERANCE`


def require_format(path: Path) -> None:
    """Refuse a file that could not be written, before anything is loaded.

    Raises:
        ExportError: its format is unknown, its folder does not exist, or a package that writes or checks it is missing.
    """
    if path.suffix not in (ONNX, TORCH):
        raise ExportError(f"{path}: a policy is written as policy{ONNX} or as policy{TORCH}")
    if not path.parent.is_dir():
        raise ExportError(f"{path}: there is no folder {path.parent}")
    if path.is_dir():
        raise ExportError(f"{path} is a folder; name a file in it")
    missing = [name for name in ONNX_PACKAGES if path.suffix == ONNX and importlib.util.find_spec(name) is None]
    if missing:
        raise ExportError(
            f"{ONNX} needs {', '.join(missing)}, not installed here: pip install {' '.join(ONNX_PACKAGES)}; "
            f"{path.with_suffix(TORCH).name} needs none of them"
        )


def export_policy(restored: RestoredPolicy, path: Path, card: Callable[[Exported], str]) -> Exported:
    """Write a policy, check it, and put it in place with its card: both files or, where it is refused, none.

    Args:
        restored: the policy; its network computes in float32 from now on.
        path: of the file, which ends in `.onnx` or `.pt2`. The card is `<path>.md`.
        card: the card's text for what was written.

    Raises:
        ExportError: the network holds what cannot be exported, or the file does not answer as the policy does.
        ConfigError: an observation has a name that an export needs.
        OSError: a file cannot be written.
    """
    policy = ExportedPolicy(restored.model, restored.spaces, restored.spec)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as folder:
        written = Path(folder) / path.name
        try:
            with _quiet():
                _write(policy, restored.spaces, written)
                answer = _opened(written)
        except OSError:
            raise
        except FAILURES as error:
            raise ExportError(
                f"this policy cannot be exported to {path.suffix}: {_first_line(error)}; its encoder has to be made of "
                f"operations that torch.export knows"
            ) from error
        exported = Exported(path, policy, _largest_difference(restored, policy, answer))
        written.with_name(f"{path.name}.md").write_text(card(exported), encoding="utf-8")
        for file in Path(folder).iterdir():  # a network of more than 2 GB has a file of weights beside it
            file.replace(path.parent / file.name)
    return exported


def _write(policy: ExportedPolicy, spaces: tuple[Any, Any], path: Path) -> None:
    example = {name: torch.from_numpy(array) for name, array in policy.random_inputs(_TRACED_ROWS, spaces).items()}
    batch = torch.export.Dim("batch", min=1)
    program = torch.export.export(policy, (example,), dynamic_shapes=({name: {0: batch} for name in example},))
    if path.suffix == TORCH:
        torch.export.save(program, path)
        return
    names = [port.name for port in policy.inputs], [port.name for port in policy.outputs]
    made = torch.onnx.export(program, dynamo=True, input_names=names[0], output_names=names[1], verbose=False)
    assert made is not None, "torch returns a program unless it is given a file"
    made.save(path)


def _opened(path: Path) -> Callable[[Arrays], Arrays]:
    """The file as a user opens it: a function of arrays by name."""
    if path.suffix == TORCH:
        module = torch.export.load(path).module()
        return lambda inputs: {
            name: value.numpy()
            for name, value in module({name: torch.from_numpy(array) for name, array in inputs.items()}).items()
        }
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return lambda inputs: dict(zip(names, session.run(names, inputs), strict=True))


def _largest_difference(restored: RestoredPolicy, policy: ExportedPolicy, answer: Callable[[Arrays], Arrays]) -> float:
    """Between what the file and what the policy answer, beside `TOLERANCE`.

    Raises:
        ExportError: it is too large, or the file does not run.
    """
    largest = 0.0
    for rows in CHECKED_BATCHES:
        inputs = policy.random_inputs(rows, restored.spaces, seed=rows)
        try:
            outputs = answer(inputs)
        except FAILURES as error:
            raise ExportError(f"the exported file fails for a batch of {rows}: {_first_line(error)}") from error
        for name, expected in expected_outputs(restored, policy, inputs, outputs[DISTRIBUTION]).items():
            difference = _difference(outputs[name], expected)
            if not difference <= TOLERANCE:
                raise ExportError(
                    f"the exported file gives another {name} than the policy, by {difference:.2g} in a batch of {rows} "
                    f"(allowed: {TOLERANCE:g}); it is not kept"
                )
            largest = max(largest, difference)
    return largest


@torch.no_grad()
def expected_outputs(
    restored: RestoredPolicy, policy: ExportedPolicy, inputs: Arrays, distribution: NDArray[np.float32]
) -> Arrays:
    """What the policy itself answers: by the code that plays it, not by what was exported.

    Args:
        restored: the policy.
        policy: names its inputs and outputs.
        inputs: [N, ...] by name.
        distribution: [N, P] of which the actions are those: equally likely choices may be ordered by a rounding.
    """
    model, rows = restored.model, len(distribution)
    layout, actions = ObservationLayout(restored.spaces[0]), ActionLayout(restored.spaces[1])
    stored: Arrays = {leaf.name: np.zeros((rows, *leaf.shape), leaf.dtype) for leaf in restored.spec.observations}
    for view, part in zip(layout.views(stored), layout.parts, strict=True):
        given = inputs[part.leaf.name]
        view[:] = given if part.offset is None else given - part.offset
    if ACTION_MASK in inputs and all(leaf.name != ACTION_MASK for leaf in layout.leaves):
        stored[ACTION_MASK][:] = inputs[ACTION_MASK]
    observations = {name: torch.from_numpy(array) for name, array in stored.items()}
    if ELAPSED_STEPS in model.preprocessor.leaves:
        observations[ELAPSED_STEPS.name] = torch.zeros(rows, *ELAPSED_STEPS.shape)
    state = torch.zeros(rows, model.state_size)
    if policy.state_size:
        state[:, : policy.state_size] = torch.from_numpy(inputs[RECURRENT_STATE])
    step = model.act(observations, state)
    chosen = actions.batched(model.distribution.mode(torch.from_numpy(distribution)).numpy())
    known = {
        DISTRIBUTION: step.parameters.numpy(),
        VALUE: step.values.numpy(),
        NEXT_RECURRENT_STATE: step.state[:, : policy.state_size].numpy(),
    }
    known |= {part.name: value_at(chosen, part.path) for part in policy.action_parts}
    return {port.name: known[port.name] for port in policy.outputs}


def _difference(given: NDArray[Any], expected: NDArray[Any]) -> float:
    """The largest, in proportion where numbers are larger than 1; infinite where shapes or dtypes differ."""
    if given.shape != expected.shape or given.dtype != expected.dtype:
        return float("inf")
    exact, other = expected.astype(np.float64), given.astype(np.float64)
    return float((np.abs(other - exact) / np.maximum(1.0, np.abs(exact))).max(initial=0.0))


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without what torch's exporter tells its developers."""
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
