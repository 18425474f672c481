"""What processes of environments were asked and have not answered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from appo.envs.vector.errors import EnvWorkerDied, EnvWorkerError, Failure
from appo.envs.vector.process_handle import ProcessHandle
from appo.envs.vector.talk import Answer, Ask


class OpenRequests:
    """Requests by number, from the question to the answer."""

    def __init__(self) -> None:
        self._newest = 0
        self._asked: dict[int, tuple[int, ProcessHandle]] = {}  # environment and process
        self._answers: dict[int, Answer | None] = {}  # None: the process has ended

    def open(self, env: int, worker: ProcessHandle) -> int:
        """The number of a request about an environment, to be sent with `send` and taken back with `forget`."""
        self._newest += 1
        self._asked[self._newest] = env, worker
        return self._newest

    def send(self, request: int, what: str, arguments: tuple[Any, ...]) -> None:
        """Ask; `what` and its arguments: see `talk.answer`."""
        env, worker = self._asked[request]
        worker.requests.append(request)
        worker.post(Ask(request, what, [env - worker.envs.start], arguments))

    def unanswered(self, requests: Sequence[int]) -> list[int]:
        """The environments of those of these requests that have no answer yet."""
        return [self._asked[request][0] for request in requests if request not in self._answers]

    def results(self, what: str, requests: Sequence[int]) -> dict[int, Any]:
        """What was answered to requests, all of which have been: environment -> result.

        Raises:
            EnvWorkerDied: the process ended first.
            EnvWorkerError: the answer is a failure.
        """
        found = {}
        for request in requests:
            (env, worker), answer = self._asked[request], self._answers[request]
            if answer is None:
                how = f"ended before it answered {what!r}; it is restarted: ask again"
                raise EnvWorkerDied(list(worker.envs), worker.worker, None, how)
            if answer.failure is not None:
                raise EnvWorkerError.of(answer.failure, worker.worker)
            found[env] = answer.results[0]
        return found

    def forget(self, requests: Sequence[int]) -> None:
        """Nobody waits for these any more."""
        for request in requests:
            self._answers.pop(request, None)
            self._asked.pop(request, None)

    def answer(self, worker: ProcessHandle, answer: Answer) -> None:
        """A process has answered; what it was asked before and has not answered got lost."""
        while worker.requests and worker.requests.popleft() != answer.request:
            pass
        if answer.request in self._asked:
            self._answers[answer.request] = answer

    def fail_oldest(self, worker: ProcessHandle, failure: Failure) -> None:
        """A process has sent what nobody can read: the oldest answer that is missing, if one is."""
        if worker.requests and (request := worker.requests.popleft()) in self._asked:
            self._answers[request] = Answer(request, [], failure)

    def end(self, worker: ProcessHandle) -> None:
        """A process has ended, and answers nothing any more."""
        for request, (_, asked) in self._asked.items():
            if asked is worker:
                self._answers.setdefault(request, None)
