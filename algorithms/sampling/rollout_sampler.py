"""A sampler: any policy in any `VecEnv`, without training. Whole episodes, exactly so many of them, or fragments.

    sampler = SamplerRecipe("CartPole-v1", num_envs=8, num_workers=2).build("random")
    batch = sampler.obtain_exact_episodes(10)      # ten from each environment, whichever are short
    batch.save("data/cartpole")

No environment waits for another one, and none for room: what it has finished lies in its own memory until it is taken,
and only then is it asked to go on. The action is chosen when it is sent, by the newest policy; its version is kept with
each step.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import psutil
from numpy.typing import NDArray

from appo.algorithms.sampling.collector import EpisodeCollector
from appo.algorithms.sampling.env_update import EnvChanges, EnvUpdate
from appo.algorithms.sampling.episodes import Episode, EpisodeBatch
from appo.algorithms.sampling.progress_bar import ProgressBar
from appo.algorithms.sampling.sampler_policies import RandomPolicy, choose_actions, policies_of
from appo.algorithms.sampling.step_store import StepStore
from appo.envs.faults import Restarts
from appo.envs.replaceable import replaceable
from appo.envs.vector.make import make_vec_env
from appo.envs.vector.space_rows import SpaceRows
from appo.envs.vector.step_batch import KIND_STEP
from appo.envs.vector.vec_env import VecEnv
from appo.utils.options import ConfigError
from appo.utils.processes import core_count


@dataclass(frozen=True)
class SamplerRecipe:
    """All that it takes to build a sampler; pickles, where a sampler with its processes does not."""

    env: Any  # see `make_vec_env`
    num_envs: int | None = None
    num_workers: int | None = None  # processes; None: one per physical core, as far as it may be used; 0: this one
    seed: int = 0
    max_episode_length: int | None = None  # steps, after which an episode is cut
    max_policy_lag: int | None = None  # versions by which a step may be behind; None: any
    start_method: str = "forkserver"
    restarts: Restarts = field(default_factory=lambda: Restarts("restart"))
    step_timeout: float | None = None
    options: Any = None  # of the family of a named environment
    replaceable: bool = False  # `EnvUpdate` may put other environments in their places

    def build(self, policy: Any = "random", *, progress: bool = False) -> RolloutSampler:
        """Start the processes.

        Args:
            policy: see `RolloutSampler`.
            progress: show a bar, where there is a terminal.

        Raises:
            ConfigError: a limit can have no meaning, or see `make_vec_env`.
        """
        self.check()
        workers = self.num_workers
        if workers is None:
            workers = min(core_count(), psutil.cpu_count(logical=False) or 1)
            number = len(self.env) if self.num_envs is None and isinstance(self.env, list | tuple) else self.num_envs
            if isinstance(number, int | np.integer) and number > 0:  # any other is refused below
                workers = min(workers, int(number))
        processes: dict[str, Any] = {"backend": "serial"}
        if workers:
            processes = {"backend": "subproc", "num_workers": workers, "start_method": self.start_method}
        env = make_vec_env(
            replaceable(self.env) if self.replaceable else self.env,
            self.num_envs,
            seed=self.seed,
            restarts=self.restarts,
            step_timeout=self.step_timeout,
            options=self.options,
            **processes,
        )
        try:
            return RolloutSampler(env, policy, recipe=self, progress=progress)
        except BaseException:
            env.close()
            raise

    def check(self) -> None:
        """Refuse numbers that can have no meaning.

        Raises:
            ConfigError: names the number.
        """
        if not isinstance(self.seed, int | np.integer) or self.seed < 0:
            raise ConfigError(f"seed={self.seed!r} has to be a whole number of at least 0")
        if self.num_workers == 0 and self.step_timeout is not None:
            raise ConfigError(
                f"step_timeout={self.step_timeout!r} needs processes, of which num_workers=0 has none; nearest: 1"
            )
        for name, least in (("max_episode_length", 1), ("max_policy_lag", 0), ("num_workers", 0)):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int | np.integer) or value < least):
                raise ConfigError(f"{name}={value!r} has to be a whole number of at least {least}, or None")


class RolloutSampler:
    """Lets a policy play in environments, and gives what happened."""

    def __init__(
        self, env: VecEnv, policy: Any = "random", *, recipe: SamplerRecipe | None = None, progress: bool = False
    ) -> None:
        """Over environments, which are closed with the sampler.

        Args:
            env: the environments.
            policy: "random"; a number or array, a constant action in policy units; a function of a batch of
                observations; or a `SamplerPolicy`, as `load_policy` gives one.
            recipe: how it was built, with its limits.
            progress: show a bar, where there is a terminal.

        Raises:
            ConfigError: a limit can have no meaning, or not for these environments.
            TypeError: the policy is nothing that can act.
            ValueError: it is no action of these environments.
        """
        self.env, self.recipe = env, recipe or SamplerRecipe(None)
        self.total_env_steps = 0
        """Steps of environments so far, those of episodes that were dropped, too."""
        self.total_discarded_steps = 0
        """Steps so far that are left out because of `max_policy_lag`."""
        self.version = 0
        """Of the policy."""
        self.recipe.check()
        self._require_length_limit(self.recipe.max_episode_length)
        self._space_rows = SpaceRows((env.observation_space, env.action_space), env.spec)
        self.restored = self._space_rows.restored
        """Arrays of observations by name -> a batch of the observation space."""
        self._policies = policies_of(policy, env.spec, env.num_envs, self.recipe.seed, self._space_rows)
        self._changes = EnvChanges(env, self.recipe.seed, self.recipe.options, is_replaceable=self.recipe.replaceable)
        self._shows_progress = progress and sys.stderr.isatty()
        self._store = StepStore(env)
        self._collector = EpisodeCollector(env.spec, env.num_envs, None)
        self._finished: deque[Episode] = deque()  # and not asked for yet
        self._has_begun = False
        self._seed: int | None = None  # of the next reset
        self._going_on = ""  # what the next call can go on with: "samples" or "fragments"; else it begins anew

    def update_policy(self, policy: Any, version: int | None = None) -> None:
        """Use another policy, or other parameters of it, from the next action on.

        Args:
            policy: as in the constructor; a dict of parameters, for a policy with a method `set_parameters`; a list
                with one of these for each environment; None: the same policy, of a new version.
            version: of the policy; None: one more than that before.

        Raises:
            ValueError: a list of another length, no action of these environments, or no version.
            TypeError: it is nothing that can act.
        """
        version = self.version + 1 if version is None else version
        _require_count("version", version, least=0)
        if isinstance(policy, dict):
            told: list[Any] = list({id(one): one for one in self._policies}.values())
            for each in told:
                if not hasattr(each, "set_parameters"):
                    raise TypeError(f"{type(each).__name__} has no set_parameters and takes no parameters")
            for each in told:
                each.set_parameters(policy)
        elif policy is not None:
            self._policies = policies_of(policy, self.env.spec, self.env.num_envs, self.recipe.seed, self._space_rows)
        self.version = version

    def update_envs(self, update: EnvUpdate | list[EnvUpdate | None] | None) -> None:
        """Change environments, all alike or each in its way.

        Where one is replaced or changed by a function, the next call begins anew, with a reset of all of them.

        Raises:
            ValueError: a list of another length.
            TypeError: it is no `EnvUpdate`, or holds something that is no environment or no function.
            ConfigError: these environments cannot be replaced, or no environment has such a name.
            EnvWorkerError: an environment could not be updated; those before it have been.
        """
        updates = self._changes.checked(update)
        if any(each is not None and each.needs_reset for each in updates):
            self._going_on = ""
            if self._has_begun:
                self.env.reset()  # so that nothing is under way
        for env_id, each in enumerate(updates):
            if each is not None:
                self._changes.apply(env_id, each)

    def obtain_samples(self, num_steps: int, *, complete_episodes: bool = True) -> EpisodeBatch:
        """Episodes with at least so many steps together, in the order in which they end.

        Short episodes end first, so they are preferred: what is measured of whole ones is biased where length and
        return go together; see `obtain_exact_episodes`. Episodes that are still being played go on with the next call;
        where one raises, the next begins anew, without all that had been played and not given.

        Args:
            num_steps: of environments.
            complete_episodes: give whole episodes only. False: also what has been played of those that go on, as soon
                as there are enough steps; the next call, or a `stream`, gives what follows.
        """
        _require_count("num_steps", num_steps)
        what = "samples" if complete_episodes else "fragments"
        self._begin(what)
        before = self._counted()
        taken: list[Episode] = []
        steps = 0
        with ProgressBar("steps", num_steps, is_shown=self._shows_progress) as advance:
            while steps < num_steps:
                if not self._finished:
                    self._finished += self._receive()
                    waiting = sum(map(len, self._finished)) + int(self._store.num_kept.sum())
                    if not complete_episodes and steps + waiting >= num_steps:
                        self._finished += self._fragments(np.flatnonzero(self._store.num_kept))
                    continue
                episode = self._finished.popleft()
                if self._is_new_enough(episode):
                    taken.append(episode)
                    steps += len(episode)
                    advance(len(episode))
        self._going_on = what
        return self._batch(taken, before)

    def obtain_exact_episodes(self, n_per_env: int, *, max_episode_length: int | None = None) -> EpisodeBatch:
        """So many episodes of each environment, from their beginning, in the order of the environments.

        An environment that has played its share is not stepped any further. Everything begins anew.

        Args:
            n_per_env: episodes.
            max_episode_length: steps after which an episode is cut; None: as the recipe says.

        Raises:
            ConfigError: these environments cannot be cut.
        """
        _require_count("n_per_env", n_per_env)
        if max_episode_length is not None:
            _require_count("max_episode_length", max_episode_length)
            self._require_length_limit(max_episode_length)
        self._restart(np.full(self.env.num_envs, n_per_env))
        before = self._counted()
        episodes: list[list[Episode]] = [[] for _ in range(self.env.num_envs)]
        total = n_per_env * self.env.num_envs
        with ProgressBar("episodes", total, is_shown=self._shows_progress) as advance:
            while not self._collector.is_full:
                for episode in self._receive(max_episode_length):
                    episodes[episode.env_id].append(episode)
                    advance(1)
        return self._batch([episode for of_env in episodes for episode in of_env], before)

    def stream(self, fragment_len: int) -> Iterator[Episode]:
        """Fragments of episodes for ever: so many steps, fewer where an episode ends.

        Those of an environment follow each other, also in another stream that takes the place of one that was left. Two
        things leave a gap, which `number` and `start` of the next fragment show: an environment that was lost, and
        `max_policy_lag`, see `total_discarded_steps`.
        """
        _require_count("fragment_len", fragment_len)
        return self._stream(fragment_len)

    def _stream(self, fragment_len: int) -> Iterator[Episode]:
        while True:
            self._begin("fragments")
            while not self._finished:
                self._finished += self._receive(fragment_len=fragment_len)
            fragment = self._finished.popleft()
            self._going_on = "fragments"
            if self._is_new_enough(fragment):
                yield fragment

    def reset(self, seed: int | None = None) -> None:
        """Let the next call begin anew: episodes under way, and those that were not asked for yet, are dropped.

        Args:
            seed: of the environments, and of random actions; None: their random numbers go on.

        Raises:
            ValueError: it is none.
        """
        if seed is not None:
            _require_count("seed", seed, least=0)
            for place, policy in enumerate(self._policies):
                if isinstance(policy, RandomPolicy):
                    policy.seed(seed + place)
        self._going_on, self._seed = "", seed

    def close(self, timeout: float = 10.0) -> None:
        """Close the environments."""
        self.env.close(timeout)

    def __enter__(self) -> RolloutSampler:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __reduce__(self) -> Any:
        raise TypeError("a sampler has processes and cannot be pickled: pickle its recipe, and build it again")

    def _begin(self, what: str) -> None:
        """Go on with what was done last, or begin anew.

        Until a call has come to its end, nothing can go on: where it raises, some environments may have been received
        and not been sent to again, and the next call has to reset them all.
        """
        if self._going_on != what:
            self._restart(None)
        self._going_on = ""

    def _restart(self, episodes: NDArray[np.int64] | None) -> None:
        self._collector = EpisodeCollector(self.env.spec, self.env.num_envs, episodes)
        self._store.clear()
        self._finished.clear()
        self._going_on = ""
        seed: Any = self._seed
        if seed is None and self._changes.seeds:
            seed = [self._changes.seeds.get(env) for env in range(self.env.num_envs)]
        self._has_begun = True
        self.env.async_reset(seed)
        self._seed = None
        self._changes.seeds.clear()

    def _receive(self, limit: int | None = None, fragment_len: int | None = None) -> list[Episode]:
        """Take what is ready and let these environments go on; the episodes, or fragments, that ended."""
        batch = self.env.recv()
        store, collector = self._store, self._collector
        self.total_env_steps += int(np.count_nonzero(batch.kind == KIND_STEP))
        wanted = collector.wants(batch.env_ids)
        collector.add(batch)
        is_over = collector.ended
        store.add(batch, is_over)
        ended: list[Episode] = []
        for place in np.flatnonzero(is_over).tolist():
            episode = store.take(int(batch.env_ids[place]), self._space_rows, ends=True)
            ended += [episode] if wanted[place] else []
        limit = self.recipe.max_episode_length if limit is None else limit
        too_long = ~is_over & (store.lengths[batch.env_ids] >= (limit or np.inf))
        ended += [self._cut(env) for env in batch.env_ids[too_long].tolist()]
        if fragment_len is not None:
            is_full = ~is_over & ~too_long & (store.num_kept[batch.env_ids] >= fragment_len)
            ended += self._fragments(batch.env_ids[is_full])
        store.begin(batch, is_over)
        going_on = batch.env_ids[collector.wants(batch.env_ids) & ~too_long]
        if not self.env.steps_apart and not collector.is_full:
            going_on = batch.env_ids  # all step together: what some play beyond their share is left out
        if len(going_on):
            self._act(going_on)
        return ended

    def _cut(self, env: int) -> Episode:
        """End an episode that has become too long, and let its environment begin another one."""
        self._store.truncate(env)
        episode = self._store.take(env, self._space_rows, ends=True)
        self._collector.close_episode(env)
        if self._collector.wants(np.array([env]))[0]:
            self.env.reset_envs([env])
        return episode

    def _fragments(self, envs: NDArray[np.int64]) -> list[Episode]:
        """What environments have gathered of episodes that go on."""
        return [self._store.take(env, self._space_rows, ends=False) for env in envs.tolist()]

    def _act(self, envs: NDArray[np.int64]) -> None:
        agents, store = self.env.num_agents, self._store
        observations = {name: array[envs] for name, array in store.latest.items()}
        actions = choose_actions(self._policies, envs, observations, store.is_first[envs], agents)
        store.actions[envs] = actions.reshape(store.actions[envs].shape)
        store.versions[envs] = self.version
        self.env.send_rows(actions.reshape(len(envs) * agents, -1), envs)

    def _is_new_enough(self, episode: Episode) -> bool:
        lag = self.recipe.max_policy_lag
        if lag is None or episode.versions.min(initial=self.version) >= self.version - lag:
            return True
        self.total_discarded_steps += len(episode)
        return False

    def _counted(self) -> tuple[int, int, int]:
        """Steps that are left out, aborted episodes and frames, since everything began."""
        return self.total_discarded_steps, self._collector.aborted, self._collector.frames

    def _batch(self, episodes: list[Episode], before: tuple[int, int, int]) -> EpisodeBatch:
        """`before`: what was `_counted` when the call began."""
        return EpisodeBatch(tuple(episodes), *(now - then for now, then in zip(self._counted(), before, strict=True)))

    def _require_length_limit(self, limit: int | None) -> None:
        if limit is not None and not self.env.steps_apart:
            raise ConfigError("max_episode_length needs environments that are reset apart, which a VectorEnv's are not")


def _require_count(name: str, value: Any, least: int = 1) -> None:
    if not isinstance(value, int | np.integer) or value < least:
        raise ValueError(f"{name}={value!r}: a whole number of at least {least} is needed")
