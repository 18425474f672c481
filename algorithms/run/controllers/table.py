"""The controllers of a run beside the checkpoints. To add one: a file in this folder, and its class in this table."""

from __future__ import annotations

from collections.abc import Callable

from appo.algorithms.run.controllers.bottlenecks import Bottlenecks
from appo.algorithms.run.controllers.callbacks import Callbacks
from appo.algorithms.run.controllers.context import Controller, ControllerContext
from appo.algorithms.run.controllers.evaluations import Evaluations
from appo.algorithms.run.controllers.population import Population
from appo.algorithms.run.controllers.schedule import Schedule
from appo.algorithms.run.controllers.self_play import SelfPlay
from appo.algorithms.run.controllers.stopping import Stopping
from appo.algorithms.run.controllers.watchdog import Watchdog
from appo.algorithms.run.controllers.weights_and_biases import WeightsAndBiases

CONTROLLERS: tuple[Callable[[ControllerContext], Controller], ...] = (
    Watchdog,
    Population,
    Schedule,
    SelfPlay,
    Stopping,
    Evaluations,
    Callbacks,
    Bottlenecks,
    WeightsAndBiases,
)
