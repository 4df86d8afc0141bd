"""The same accidents through NVFlare's adapter and through a bare port give the same rounds."""

import pytest
from nvflare.apis.shareable import make_reply

import turnout
from tests.live.history import FakePort, History
from tests.live.nvflare.fake import Federation, Site, cohorts, play, statuses
from tests.live.test_session import COHORT, play_round, settings_of
from turnout.core.types import Status
from turnout.live import Live, Session

ROUNDS = 25
#: A hung client of NVFlare fetches nothing any more, one of the history takes the next work.
KINDS = ("ok", "failed", "late")


def history_of(seed):
    return History(seed, kinds=KINDS, churn=0.0)


def through_nvflare(seed, selector, ticking):
    history, told = history_of(seed), settings_of()
    there = history.online()
    federation = Federation([Site(history.names[i]) for i in there])
    for i in there:
        site = federation.sites[history.names[i]]
        work = site.work

        def follow(shareable, i=i, site=site, work=work):
            result, _ = work(shareable)
            step = history.step(i, len(site.trained) - 1)
            return (
                make_reply("EXECUTION_EXCEPTION") if step.kind == "failed" else result
            ), step.delay

        site.work = follow
    controller = play(
        federation,
        ticking,
        selector=selector,
        cohort_size=COHORT,
        num_rounds=ROUNDS,
        policy=told.policy,
        seed=told.seed,
        start_s=told.start_s,
        wait_for_clients_s=told.wait_for_clients_s,
        poll_s=told.poll_s,
    )
    return cohorts(controller), [list(statuses(controller, t).values()) for t in range(ROUNDS)]


def through_a_port(seed, selector):
    live = Live(Session(settings_of(), turnout.make(selector)), FakePort(history_of(seed)))
    chosen, found = [], []
    for _ in range(ROUNDS):
        _, _, ended = play_round(live)
        chosen.append(list(ended.ids))
        found.append([Status(int(status)).name.lower() for status in ended.closed.status])
    return chosen, found


@pytest.mark.parametrize("selector", ["random", "e3cs", "round-robin"])
def test_the_same_accidents_give_the_same_rounds(ticking, selector):
    through = through_nvflare(5, selector, ticking)
    assert through == through_a_port(5, selector)
    assert {status for found in through[1] for status in found} == {"completed", "failed", "late"}
