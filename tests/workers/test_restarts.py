"""Which workers are replaced, when, and when the run ends: every rule of the restart policy."""

import pytest

from appo.algorithms.workers.restarts import LONGEST_PAUSE_S, Loss, RestartLimits, RestartPolicy, Verdict
from appo.algorithms.workers.roster import ACTOR, KINDS, LEARNER, POLICY_WORKER

KILLED = Loss(in_setup=False, by_exception=False, retryable=True, has_worked=False)
AFTER_WORK = KILLED._replace(has_worked=True)
IN_SETUP = KILLED._replace(in_setup=True)
FAILED_IN_SETUP = IN_SETUP._replace(by_exception=True)


def policy(**limits):
    return RestartPolicy(RestartLimits(**limits), num_actors=4)


def judge(restarts, name, kind, loss):
    return restarts.judge(name, loss, can_be_spared=KINDS[kind].can_be_spared)


def verdicts(restarts, kind, losses, name="worker"):
    return [judge(restarts, name, kind, loss).verdict for loss in losses]


@pytest.mark.parametrize("kind", KINDS)
def test_a_worker_that_worked_is_replaced_at_once_for_ever(kind):
    restarts = policy(failures_in_a_row=1)
    decisions = [judge(restarts, "worker", kind, AFTER_WORK) for _ in range(100)]
    assert all(decision.verdict is Verdict.REPLACE and decision.pause_s == 0.0 for decision in decisions)


def test_pauses_double_up_to_a_limit_and_begin_anew_after_work():
    restarts = policy(failures_in_a_row=100, first_pause_s=0.5)
    pauses = [judge(restarts, "worker", LEARNER, KILLED).pause_s for _ in range(10)]
    assert pauses == [0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, LONGEST_PAUSE_S, LONGEST_PAUSE_S, LONGEST_PAUSE_S]
    assert judge(restarts, "worker", LEARNER, AFTER_WORK).pause_s == 0.0
    assert judge(restarts, "worker", LEARNER, KILLED).pause_s == 0.5


def test_failures_are_counted_for_each_worker_alone():
    restarts = policy(failures_in_a_row=1)
    assert verdicts(restarts, LEARNER, [KILLED], "learner-0") == [Verdict.REPLACE]
    assert verdicts(restarts, LEARNER, [KILLED], "learner-1") == [Verdict.REPLACE]
    assert verdicts(restarts, LEARNER, [KILLED], "learner-0") == [Verdict.END]


@pytest.mark.parametrize("kind", [POLICY_WORKER, LEARNER])
def test_beyond_the_limit_the_run_ends_with_the_number(kind):
    restarts = policy(failures_in_a_row=2)
    assert verdicts(restarts, kind, [KILLED, IN_SETUP]) == [Verdict.REPLACE] * 2
    decision = judge(restarts, "worker", kind, KILLED)
    assert decision.verdict is Verdict.END and decision.reason.startswith("3 times in a row")


def test_actors_are_given_up_one_by_one_until_too_many_are():
    restarts = policy(failures_in_a_row=1, quarantined_share=0.5)
    for name in ("actor-00", "actor-01"):
        assert verdicts(restarts, ACTOR, [KILLED, KILLED], name) == [Verdict.REPLACE, Verdict.QUARANTINE]
    assert restarts.quarantined == {"actor-00", "actor-01"}
    assert verdicts(restarts, ACTOR, [KILLED], "actor-02") == [Verdict.REPLACE]
    decision = judge(restarts, "actor-02", ACTOR, KILLED)
    assert decision.verdict is Verdict.END and "2 of 4 actors were quarantined before it" in decision.reason


def test_at_least_one_actor_has_to_be_left():
    restarts = policy(failures_in_a_row=1, quarantined_share=1.0)
    losses = [KILLED, KILLED]
    ends = [verdicts(restarts, ACTOR, losses, f"actor-{number}")[-1] for number in range(4)]
    assert ends == [Verdict.QUARANTINE] * 3 + [Verdict.END]


def test_an_exception_in_setup_is_retried_for_actors_only_and_so_often():
    restarts = policy(setup_retries=2, failures_in_a_row=100)
    expected = [Verdict.REPLACE, Verdict.REPLACE, Verdict.END]
    assert verdicts(restarts, ACTOR, [FAILED_IN_SETUP] * 3) == expected
    for kind in (POLICY_WORKER, LEARNER):
        assert verdicts(restarts, kind, [FAILED_IN_SETUP], kind) == [Verdict.END]


def test_losses_of_another_kind_take_no_tries_of_a_setup_away():
    restarts = policy(setup_retries=1, failures_in_a_row=100)
    assert verdicts(restarts, ACTOR, [AFTER_WORK, KILLED, IN_SETUP, FAILED_IN_SETUP]) == [Verdict.REPLACE] * 4
    assert verdicts(restarts, ACTOR, [AFTER_WORK, FAILED_IN_SETUP]) == [Verdict.REPLACE] * 2, "it has worked since"
    assert verdicts(restarts, ACTOR, [KILLED, FAILED_IN_SETUP]) == [Verdict.REPLACE, Verdict.END]


def test_a_kill_in_setup_is_no_exception():
    assert verdicts(policy(setup_retries=0), LEARNER, [IN_SETUP]) == [Verdict.REPLACE]


@pytest.mark.parametrize("kind", KINDS)
def test_what_no_retry_can_help_ends_the_run(kind):
    assert verdicts(policy(), kind, [AFTER_WORK._replace(retryable=False)]) == [Verdict.END]


@pytest.mark.parametrize("kind", KINDS)
def test_without_any_restarts_the_first_loss_ends_the_run(kind):
    assert verdicts(policy(failures_in_a_row=0), kind, [AFTER_WORK]) == [Verdict.END]
