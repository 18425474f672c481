"""Environments whose observations tell what was done to them, and which fail, sleep and hang as they are told."""

import os
import signal
import subprocess
import sys
import time

import gymnasium
import numpy as np
import psutil
from gymnasium import spaces


class Echo(gymnasium.Env):
    """Shows [env id, attempt, number of the reset, steps of the episode, last action]; ends after `length` steps."""

    action_mask_in_info = False  # so nobody has to look

    def __init__(self, context, length=5, sleep_s=0.0, reset_s=0.0, script=(), truncates=False, size=0):
        """`script`: (attempt, step since it was built) -> what happens then, see `_misbehave`."""
        self.context, self.length, self.sleep_s, self.reset_s = context, length, sleep_s, reset_s
        self.script, self.truncates, self.size = dict(script), truncates, size
        self.observation_space = spaces.Box(-np.inf, np.inf, (5 + size,), np.float32)
        self.action_space = spaces.Discrete(1000)
        self.resets = self.steps = self.total = 0
        self.action: float = 0
        self.params = {"gravity": 1.0, "wind": 0.0}
        self._misbehave(self.script.get((context.attempt, "make")))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        time.sleep(self.reset_s)
        self.resets += 1
        self.steps, self.action, self.options = 0, -1, options
        self._misbehave(self.script.get((self.context.attempt, "reset")))
        return self._observation(), {}

    def step(self, action):
        time.sleep(self.sleep_s)
        self.steps, self.total, self.action = self.steps + 1, self.total + 1, int(action)
        self._misbehave(self.script.get((self.context.attempt, self.total)))
        has_ended = self.steps == self.length
        info = {"episode_extra_stats": {"steps": self.steps}} if has_ended else {}
        return (
            self._observation(),
            float(self.action),
            has_ended and not self.truncates,
            has_ended and self.truncates,
            info,
        )

    def get_env_params(self):
        return dict(self.params)

    def set_env_params(self, params):
        self.params |= params

    def pop_env_stats(self):
        return {"total": (self.total, "sum"), "longest": (self.context.env_id, "max")}

    def tell_context(self):
        return self.context

    def tell_process(self):
        return os.getpid(), psutil.Process().name(), sys.argv[:0]

    def close(self):
        self._misbehave(self.script.get((self.context.attempt, "close")))

    def _observation(self):
        told = [self.context.env_id, self.context.attempt, self.resets, self.steps, self.action]
        return np.array([*told, *[self.steps] * self.size], np.float32)

    def _misbehave(self, how):
        if how is None:
            return
        if how == "raise":
            raise ValueError(f"as told, environment {self.context.env_id}")
        if how == "unpicklable":
            raise Unpicklable(lambda: 0)
        if how == "exit":
            os._exit(7)
        if how == "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        if how == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        if how == "pause":
            time.sleep(1.0)
        if how == "sleep":
            time.sleep(3600)
        if how == "deaf":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            while True:
                time.sleep(1)
        if how == "engine":
            command = [sys.executable, "-c", "import time; time.sleep(3600)"]
            self.engine_pid = subprocess.Popen(command, start_new_session=True).pid
        if how == "nan":
            self.action = float("nan")


class Unpicklable(Exception):
    """Cannot be sent to another process."""

    def __init__(self, reason):
        super().__init__("cannot be pickled")
        self.reason = reason


def descendants():
    """Processes below this one, but for the servers of multiprocessing and the guardian, which end with this one."""
    servers = ("resource_tracker", "forkserver import main", "guardian.py")
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            words = " ".join(process.cmdline())
            if process.status() != psutil.STATUS_ZOMBIE and not any(name in words for name in servers):
                found.append(process.pid)
        except psutil.Error:
            continue
    return found
