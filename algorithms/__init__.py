"""Asynchronous PPO: actors step environments, policy workers act, learners learn, a driver follows.

The floor plan, lower floors first; a room imports lower floors only:

    specs, messages                          sizes, and what processes say to each other
    learning, models, memory, checkpoints    tensors in, tensors out; networks; shared memory; files of weights
    sampling                                 one actor's work, without processes
    config                                   every room's options composed
    evaluation                               watching and scoring
    reporting, workers                       the numbers of a run; the only room that knows processes
    run                                      the driver

The tour, forty minutes: `messages`, `appo.envs.api`, `memory.layout`, `memory.blocks`, `sampling.env_split`,
`workers.actor_worker`, `workers.policy_core`, `workers.learner_core`, `learning.learner` with `masks` and `vtrace`,
`workers.worker`, `workers.supervisor`, and `run.driver`, which holds it all together.
"""
