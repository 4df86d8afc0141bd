"""Shadows: they choose beside the selector in charge, change nothing, and never harm the run."""

import logging

import numpy as np
import pytest

from tests.live.history import FakePort, History
from tests.live.test_session import calm, play_round, session_of, settings_of
from turnout import InvalidInput, RoundContext, Selection, Selector
from turnout.core.files import read_npz
from turnout.core.registry import make
from turnout.live import Identity, Kind, Live, LiveSettings, Reply, Session
from turnout.live.checkpoint import checkpoint_bytes, read_checkpoint
from turnout.live.records import Records
from turnout.live.world import VirtualWorld
from turnout.report.live import LiveRun, LiveView
from turnout.results import read_cells
from turnout.results.files import SELECTIONS
from turnout.results.shadows import read_shadows
from turnout.twin import replay
from turnout.worlds import FixedDeadline, e3cs_world

SHADOW = ("pace", "e3cs:quota=0.5", "oort")
BREAKS = "tests.live.test_shadows:Breaks"


class Breaks(Selector):
    """Chooses the first ones, and raises in the sixth round."""

    def select(self, ctx: RoundContext, rng: np.random.Generator) -> Selection:
        """Raise in the sixth round."""
        if ctx.round == 5:
            raise RuntimeError("out of order")
        return Selection(ctx.round, ctx.pool[: ctx.size])


class Odd(Breaks):
    """From the third round on its choice or its chances are no such thing."""

    def choice(self, ctx):
        return Selection(ctx.round, ctx.pool[: ctx.size])

    def select(self, ctx: RoundContext, rng: np.random.Generator) -> Selection:
        """Choose the first ones, or something odd."""
        return self.choice(ctx) if ctx.round > 1 else Selection(ctx.round, ctx.pool[: ctx.size])


class ChoosesNone(Odd):
    def choice(self, ctx):
        return None


class ChoosesNumbers(Odd):
    def choice(self, ctx):
        return ctx.pool[: ctx.size]


class ChoosesFar(Odd):
    def choice(self, ctx):
        return Selection(ctx.round, [1_000_000])


class ChoosesMany(Odd):
    def choice(self, ctx):
        return Selection(ctx.round, ctx.pool)


class ChoosesBusy(Odd):
    def choice(self, ctx):
        return Selection(ctx.round, np.flatnonzero(~ctx.available)[:1])


class ShortChances(Odd):
    def chances(self, ctx):
        return np.full(2 if ctx.round > 1 else ctx.n_clients, 0.5)


class WideChances(Odd):
    def chances(self, ctx):
        return np.full((ctx.n_clients, 2) if ctx.round > 1 else ctx.n_clients, 0.5)


class NoChances(Odd):
    def chances(self, ctx):
        return np.full(ctx.n_clients, np.nan if ctx.round > 1 else 0.5)


class WordChances(Odd):
    def chances(self, ctx):
        return np.full(ctx.n_clients, "half") if ctx.round > 1 else None


class OddState(Odd):
    def state(self):
        return {"it": np.array([object()])}


class NoState(Odd):
    def state(self):
        raise RuntimeError("no state")


ODD = (ChoosesNone, ChoosesNumbers, ChoosesFar, ChoosesMany, ChoosesBusy)
ODD += (ShortChances, WideChances, NoChances, WordChances)


def play(n_rounds, *, shadow=(), history=None, restart_at=None, records=None, selector="random"):
    """Return whom a run chose, and its session; with ``restart_at`` it resumes from bytes."""
    history = history or History(3)
    port = FakePort(history)
    given = {"shadow": shadow}
    session, chosen = session_of(selector, **given), []
    kept = None
    if records is not None:
        kept = Records(records, session.settings.config("fake", session.selector, None, n_rounds))
        kept.open(session.journal, resumed=False)
    live = Live(session, port, kept)
    for t in range(n_rounds):
        if t == restart_at:
            saved = checkpoint_bytes(session.state({}), "fake")
            session = session_of(selector, **given)
            session.load(read_checkpoint(saved))
            live = Live(session, port, kept)
        cohort, _, _ = play_round(live)
        chosen.append(cohort.ids)
        if kept is not None:
            kept.add(session.journal)
        history.advance()
    if kept is not None:
        kept.finish(session.journal)
    return chosen, session


@pytest.mark.parametrize("selector", ["random", "e3cs", "pow-d"])
def test_shadows_change_nothing(ticking, selector):
    """The same clients are chosen with and without them."""
    with_shadows, session = play(25, shadow=SHADOW, selector=selector)
    assert with_shadows == play(25, selector=selector)[0]
    assert session.shadows.labels == ("pace", "e3cs quota=0.5", "oort")


def test_records_hold_what_they_would_have_chosen(ticking, tmp_path):
    """One entry per choice, wishes among the free clients, and the chances of e3cs."""
    play(25, shadow=SHADOW, records=tmp_path)
    ((cell,), problems) = read_cells([tmp_path])
    assert not [each for each in problems if each.kind == "damaged"]
    found = read_shadows(cell.path, cell.run)
    assert list(found) == ["pace", "e3cs quota=0.5", "oort"]
    for each in found.values():
        assert each.chance.size == cell.run.clients.size
        assert each.offsets.size == cell.run.n_rounds + 1
        for t in range(cell.run.n_rounds):
            wished = each.clients[each.offsets[t] : each.offsets[t + 1]]
            assert cell.run.available_in(t)[wished].all()
    chance = found["e3cs quota=0.5"].chance
    assert ((chance > 0.0) & (chance <= 1.0)).all()
    assert 0.0 < found["pace"].agreement(cell.run) < 1.0


def test_a_resumed_run_goes_on_with_them(ticking):
    """What they learned, and what they wished, survives a checkpoint."""
    _, whole = play(20, shadow=SHADOW, history=calm())
    _, resumed = play(20, shadow=SHADOW, history=calm(), restart_at=11)
    for name, values in whole.shadows.state().items():
        np.testing.assert_array_equal(values, resumed.shadows.state()[name], err_msg=name)


def test_a_shadow_may_come_or_go_when_a_run_resumes(ticking):
    """It had no wish in the rounds before."""
    history = History(3)
    port = FakePort(history)
    session = session_of("random")
    live = Live(session, port)
    for _ in range(6):
        play_round(live)
        history.advance()
    late = session_of("random", shadow=("pace",))
    late.load(session.state({}))
    live = Live(late, port)
    for _ in range(4):
        play_round(live)
        history.advance()
    columns = late.shadows.columns()
    n_before = session.journal.columns()["clients"].size
    assert np.isnan(columns["shadow.pace.chance"][:n_before]).all()
    assert np.isfinite(columns["shadow.pace.chance"][n_before:]).all()
    assert (columns["shadow.pace.offsets"][:7] == 0).all()
    session_of("random").load(late.state({}))  # without it


def test_a_shadow_that_raises_is_switched_off(ticking, caplog):
    """The run and the other shadows go on; the log says why."""
    with caplog.at_level(logging.WARNING):
        chosen, session = play(12, shadow=(BREAKS, "e3cs"))
    assert chosen == play(12)[0]
    (line,) = [each for each in caplog.messages if "switched off" in each]
    assert "Breaks" in line
    assert "out of order" in line
    columns = session.shadows.columns()
    assert columns["shadow.Breaks.offsets"][-1] == (columns["shadow.Breaks.offsets"][5])
    sizes = np.diff(session.journal.columns()["offsets"])
    wishes = np.diff(columns["shadow.e3cs.offsets"])
    assert (wishes[sizes > 0] > 0).all()
    assert bool(session.shadows.state()["off.Breaks"])


@pytest.mark.parametrize("odd", ODD)
def test_a_shadow_whose_choice_is_no_choice_is_switched_off(ticking, caplog, tmp_path, odd):
    """The run goes on, and the records hold none of it."""
    label = odd.__name__
    with caplog.at_level(logging.WARNING):
        shadow = (f"tests.live.test_shadows:{label}", "e3cs")
        chosen, session = play(12, shadow=shadow, records=tmp_path)
    assert chosen == play(12)[0]
    (line,) = [each for each in caplog.messages if "switched off" in each]
    assert label in line
    ((cell,), problems) = read_cells([tmp_path])
    assert not problems
    found = read_shadows(cell.path, cell.run)
    assert list(found) == [label, "e3cs"]
    assert 2 <= found[label].n_rounds < found["e3cs"].n_rounds
    assert np.isnan(found[label].chance[-1])
    again = session_of("random", shadow=shadow)
    again.load(read_checkpoint(checkpoint_bytes(session.state({}), "fake")))
    assert [each.is_on for each in again.shadows._all] == [False, True]


@pytest.mark.parametrize("odd", [OddState, NoState])
def test_a_shadow_whose_state_cannot_be_saved_is_switched_off(ticking, caplog, odd):
    """The checkpoint is whole, and says so."""
    shadow = (f"tests.live.test_shadows:{odd.__name__}", "e3cs")
    chosen, session = play(12, shadow=shadow, restart_at=6)
    assert chosen == play(12, restart_at=6)[0]
    assert [each.is_on for each in session.shadows._all] == [False, True]


def test_replay_uses_what_shadows_recorded(ticking, tmp_path):
    """Their chances need no replay, also for selectors without a closed form."""
    play(60, shadow=("pace", "e3cs:quota=0.5"), records=tmp_path)
    found = {each.label: each for each in replay(tmp_path, ["pace", "e3cs:quota=0.5"]).candidates}
    for each in found.values():
        assert each.origin == "recorded in shadow", each.problem
        assert 0.0 <= each.estimates["success"]["self_normalised"].mean <= 1.0


def test_a_damaged_shadow_is_left_out(ticking, tmp_path):
    """The run itself stays readable."""
    play(10, shadow=("pace",), records=tmp_path)
    ((cell,), _) = read_cells([tmp_path])
    columns = read_npz(cell.path / SELECTIONS)
    columns["shadow.pace.chance"] = columns["shadow.pace.chance"][:-1]
    np.savez(cell.path / SELECTIONS, **columns)
    ((again,), problems) = read_cells([tmp_path])
    assert read_shadows(again.path, again.run) == {}
    assert not problems


def test_the_report_shows_them(ticking, tmp_path):
    """A row for each, in the page and in JSON."""
    play(15, shadow=("pace", "e3cs"), records=tmp_path)
    ((cell,), _) = read_cells([tmp_path])
    view = LiveView(LiveRun.of(cell), "live", "mine", "random", {})
    assert [row[0] for row in view.shadow_rows] == ["pace", "e3cs"]
    assert [each["selector"] for each in view.to_json()["shadows"]] == ["pace", "e3cs"]


@pytest.mark.parametrize(
    ("shadow", "message"),
    [
        ("pace", "must be a list"),
        ([3], "must be a list"),
        (["pcae"], "pace"),
        (["pow-d"], "asks clients for their loss"),
        (["pace", "pace"], "occurs twice"),
        (["e3cs:quota=7"], "quota"),
    ],
)
def test_impossible_shadows_are_refused_at_once(shadow, message):
    """Before anything runs."""
    with pytest.raises(InvalidInput, match=message) as caught:
        LiveSettings(shadow=shadow)
    assert "shadow" in str(caught.value)


def test_settings_with_shadows_survive_a_table():
    """As in job files and HTTP bodies."""
    settings = LiveSettings(shadow=["pace", "e3cs:quota=0.5"])
    assert list(LiveSettings.of(settings.table()).shadow) == ["pace", "e3cs:quota=0.5"]


def test_shadows_see_a_virtual_world(ticking):
    """With the world's columns and losses, which no client sends; nothing else changes."""

    def run(shadow):
        settings = settings_of(shadow=shadow, policy=FixedDeadline())
        world = VirtualWorld(e3cs_world(12, seed=2), synthetic_losses=True)
        session = Session(settings, make("random"), world=world)
        chosen = []
        for _ in range(15):
            for i in range(12):
                session.identify(i + 100, Reply(content=Identity(i)))
            session.sync(range(100, 112))
            cohort = session.open()
            for client, is_asked in zip(cohort.ids, cohort.is_asked, strict=True):
                if is_asked:
                    reply = Reply(Kind.ANSWERED, 1.0, metrics={"num_examples": 3})
                    session.receive(client, reply)
            session.close()
            chosen.append(cohort.ids)
        return chosen, session

    with_shadow, session = run(("oort", "ucb-cs"))
    assert with_shadow == run(())[0]
    columns = session.shadows.columns()
    assert (np.diff(columns["shadow.oort.offsets"]) > 0).all()
    (state,) = [each.selector.state() for each in session.shadows._all if each.label == "oort"]
    assert any(np.count_nonzero(values) for values in state.values())
