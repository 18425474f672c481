"""The stage that blocks progress, when nothing moves although every process shows signs of life."""

import pytest

from appo.algorithms.memory.counters import Phase
from appo.algorithms.run.controllers.watchdog import StallDetector
from appo.algorithms.workers.roster import ACTOR, LEARNER, POLICY_WORKER
from tests.memory.memory_cases import shared

LIMIT_S = 10.0


@pytest.fixture
def arrays():
    arrays = shared()
    arrays["policy_begun"][:] = 1
    return arrays


def watchdog(arrays, *, learns=True):
    arrays["env_frames"][0, 0] += 1
    return StallDetector(arrays, LIMIT_S, 0.0, grace_s=30.0, learns=learns)


def first_stall(dog, arrays, *, frames=False, versions=False, until=50):
    """(second, stall) of the first stall, while the counters move as told."""
    for second in range(until):
        arrays["env_frames"][0, 0] += frames
        arrays["train_steps"][0] += versions
        if stall := dog.look(float(second)):
            return second, stall
    return None


def test_what_moves_is_left_alone(arrays):
    assert first_stall(watchdog(arrays), arrays, frames=True, versions=True) is None


def test_without_a_learner_there_are_no_versions_to_wait_for(arrays):
    assert first_stall(watchdog(arrays, learns=False), arrays, frames=True) is None
    second, stall = first_stall(watchdog(arrays, learns=False), arrays)
    assert second == 11 and stall.what == "no environment frame for 10 s"


def test_frames_without_versions_are_the_learner_s_fault(arrays):
    arrays["ready_sequence"][0, 0, 0] = arrays["filling_sequence"][0, 0, 0] = 1
    second, stall = first_stall(watchdog(arrays), arrays, frames=True)
    assert second == 11 and stall.culprits == LEARNER
    assert stall.what == "no new version of policy 0 for 10 s" and stall.policy == 0
    assert stall.stage == "environments are stepped, and a learner does not learn from it"


def test_a_learner_that_has_nothing_to_learn_from_is_not_blamed(arrays):
    assert first_stall(watchdog(arrays), arrays, frames=True) is None


def test_frames_that_ended_after_the_last_version_are_judged_by_themselves(arrays):
    """An iteration takes a while: the last version comes some time before the last frame, whoever stops the frames."""
    arrays["ready_sequence"][0, 0, 0] = arrays["filling_sequence"][0, 0, 0] = 1
    dog = watchdog(arrays)
    for second in range(30):
        arrays["train_steps"][0] += second < 5
        arrays["env_frames"][0, 0] += second < 9
        if stall := dog.look(float(second)):
            break
    assert second == 19 and stall.culprits == ACTOR


def test_a_learner_that_still_fills_its_batch_is_left_alone(arrays):
    arrays["ready_sequence"][0, 0, 0] = arrays["filling_sequence"][0, 0, 0] = 100
    dog = watchdog(arrays)
    for second in range(50):
        arrays["env_frames"][0, 0] += 1
        arrays["taking_sequence"][0, 0, 0, 0] += second % 5 == 0
        assert dog.look(float(second)) is None


def test_the_first_frame_may_take_as_long_as_resets_may(arrays):
    second, stall = first_stall(StallDetector(arrays, LIMIT_S, 0.0, grace_s=30.0, learns=True), arrays)
    assert second == 31 and stall.what == "no environment frame for 30 s"


def test_before_the_first_frame_an_actor_that_still_builds_its_environments_is_the_supervisor_s_business(arrays):
    """Each environment may take as long as a reset may; how many there are is nobody's limit."""
    dog = StallDetector(arrays, LIMIT_S, 0.0, grace_s=30.0, learns=True)
    arrays["phase"][1] = Phase.RESET
    assert first_stall(dog, arrays, until=200) is None
    arrays["quarantined"][1] = 1  # and killed where it was: nobody builds there any more
    stalls = [(second, dog.look(float(second))) for second in range(200, 240)]
    assert [second for second, stall in stalls if stall] == [230]


def test_blocks_of_actors_that_were_given_up_are_not_waited_for(arrays):
    arrays["ready_sequence"][0] = arrays["filling_sequence"][0] = 1
    _, stall = first_stall(watchdog(arrays), arrays)
    assert stall.culprits == ACTOR
    arrays["quarantined"][1] = 1
    _, stall = first_stall(watchdog(arrays), arrays)
    assert stall.culprits == LEARNER


def test_open_requests_are_the_policy_workers_fault(arrays):
    arrays["asked"][:] = 7
    arrays["answered"][:] = 7
    arrays["answered"][0, 1, 2] = arrays["answered"][0, 0, 0] = 6
    _, stall = first_stall(watchdog(arrays), arrays)
    assert stall.culprits == POLICY_WORKER
    assert stall.stage == "2 of 6 splits wait for actions of a policy worker"


def test_without_first_weights_it_is_the_learner_s(arrays):
    arrays["asked"][:] = 1
    arrays["policy_begun"][:] = 0
    _, stall = first_stall(watchdog(arrays), arrays)
    assert stall.culprits == LEARNER and "first weights" in stall.stage


def test_blocks_that_are_not_taken_are_the_learner_s_fault(arrays):
    arrays["ready_sequence"][:] = arrays["filling_sequence"][:] = 1
    _, stall = first_stall(watchdog(arrays), arrays)
    assert stall.culprits == LEARNER and "blocks" in stall.stage


def test_frames_that_wait_for_a_long_iteration_are_no_stall_while_it_makes_steps(arrays):
    arrays["ready_sequence"][:] = arrays["filling_sequence"][:] = 1
    dog = watchdog(arrays)
    assert first_stall(dog, arrays, versions=True, until=100) is None
    stalls = [stall for second in range(100, 120) if (stall := dog.look(float(second)))]
    assert [(stall.culprits, stall.in_a_row) for stall in stalls] == [(LEARNER, 1)]


def test_when_no_process_waits_the_environments_block_progress(arrays):
    _, stall = first_stall(watchdog(arrays), arrays)
    assert stall.culprits == ACTOR
    assert stall.stage == "environments do not return from a step or a reset"


def test_stalls_are_told_once_per_time_allowed_and_numbered_until_something_moves(arrays):
    dog, told = watchdog(arrays, learns=False), {}
    for second in range(60):
        if second == 40:
            arrays["env_frames"][1, 0] += 1
        if stall := dog.look(float(second)):
            told[second] = stall.in_a_row
    assert told == {11: 1, 22: 2, 33: 3, 51: 1}


@pytest.fixture
def two():
    arrays = shared(policies=2)
    arrays["policy_begun"][:] = 1
    return arrays


def stall_of_two(arrays, *, frames=(1, 1), versions=(1, 1)):
    """The first stall of a run of two policies whose counters move by so much each second."""
    dog = watchdog(arrays)
    for second in range(50):
        arrays["env_frames"][0] += frames
        arrays["train_steps"][:] += versions
        if stall := dog.look(float(second)):
            return second, stall
    return None


def test_one_learner_of_two_that_learns_nothing_is_found_while_the_other_goes_on(two):
    assert stall_of_two(two, versions=(1, 0)) is None  # it has nothing to learn from
    two["ready_sequence"][0, 0, 0] = two["filling_sequence"][0, 0, 0] = 1
    two["unplayed_sequence"][1, 0, 0, 0] = 1
    assert stall_of_two(two, versions=(1, 0)) is None  # what is ready is the other's
    two["unplayed_sequence"][1] = 0
    second, stall = stall_of_two(two, versions=(1, 0))
    assert second == 11 and (stall.culprits, stall.policy) == (LEARNER, 1)
    assert stall.what == "no new version of policy 1 for 10 s"


def test_one_learner_of_two_that_hangs_is_found_while_all_frames_wait_for_the_other(two):
    two["ready_sequence"][:] = two["filling_sequence"][:] = 1
    second, stall = stall_of_two(two, frames=(0, 0), versions=(1, 0))
    assert second == 11 and (stall.culprits, stall.policy) == (LEARNER, 1)


def test_one_policy_worker_of_two_that_answers_nothing_is_found_while_the_other_goes_on(two):
    assert stall_of_two(two, frames=(1, 0)) is None  # it is asked nothing
    two["asked"][1, 2], two["unasked"][1, 1, 2] = 7, 7
    assert stall_of_two(two, frames=(1, 0)) is None  # the request is the other's
    two["unasked"][1, 1, 2] = 6
    second, stall = stall_of_two(two, frames=(1, 0))
    assert second == 11 and (stall.culprits, stall.policy) == (POLICY_WORKER, 1)
    assert stall.what == "no frame of policy 1 for 10 s"
    two["policy_begun"][0] = 0  # the other's weights are not its own
    assert stall_of_two(two, frames=(1, 0)) is not None
    two["policy_begun"][1] = 0  # it has no weights to act with yet
    assert stall_of_two(two, frames=(1, 0)) is None


def test_a_policy_worker_of_several_policies_is_replaced_once_for_all_of_them():
    arrays = shared(policies=4)
    arrays["policy_begun"][:] = 1
    arrays["asked"][1, 2] = 7
    arrays["answered"][3] = 7
    dog = StallDetector(arrays, LIMIT_S, 0.0, grace_s=30.0, learns=False, policies_per_worker=2)
    told = {}
    for second in range(20):
        arrays["env_frames"][0, 3] += 1
        if stall := dog.look(float(second)):
            told[second] = (stall.culprits, stall.policy, stall.in_a_row)
    assert told == {11: (POLICY_WORKER, 0, 1), 12: (POLICY_WORKER, 2, 1)}


def test_while_one_policy_s_learner_stalls_again_the_count_goes_on(two):
    two["ready_sequence"][0, 0, 0] = two["filling_sequence"][0, 0, 0] = 1
    dog, told = watchdog(two), {}
    for second in range(40):
        two["env_frames"][0] += 1
        two["train_steps"][0] += 1
        if stall := dog.look(float(second)):
            told[second] = (stall.policy, stall.in_a_row)
    assert told == {11: (1, 1), 22: (1, 2), 33: (1, 3)}


def test_time_without_work_is_no_stall_however_long(two):
    """A worker that had nothing to do has the whole time allowed from its first piece of work on."""
    dog = watchdog(two)
    told = {}
    for second in range(70):
        two["env_frames"][0, 0] += 1
        two["train_steps"][0] += 1
        if second == 30:
            two["asked"][1, 2] = 7
            two["unplayed_sequence"][0] = 1
            two["ready_sequence"][1, 2, 0] = two["filling_sequence"][1, 2, 0] = 1
            two["answered"][0] = 7
        if stall := dog.look(float(second)):
            told[second] = (stall.culprits, stall.policy)
    assert min(told) == 40 and set(told.values()) == {(LEARNER, 1), (POLICY_WORKER, 1)}
