import math

from turnout.worlds import History, Moment


def moment(round=0, n=100, seed=1, history=None):
    return Moment(round, n, seed, History.fresh(n) if history is None else history)


def assert_share(n_hits, n_trials, chance, *, inflation=1.0):
    """Five standard deviations of a binomial count; inflation > 1 for correlated trials."""
    margin = 5.0 * math.sqrt(inflation * n_trials * chance * (1.0 - chance))
    assert abs(n_hits - n_trials * chance) <= margin
