# %% [markdown]
# # 3. Your own selector
#
# A selector is a class with three methods: `reset` allocates the learned state, `select` selects a cohort, and
# `observe` learns. Saving, loading, resuming, the checks, the command line and Flower then work with it.
#
# This selector tracks the reply rate of each client, forgets slowly, and gives a part of the places to the
# clients that waited longest.

# %%
import matplotlib.pyplot as plt
import numpy as np

import turnout
from turnout.core.domains import Fraction
from turnout.sampling import top_m
from turnout.testing import check_selector
from turnout.worlds import e3cs_world


class Patient(turnout.Selector):
    """Reliable clients, and those who waited longest.

    Args:
        memory: How much of the score is kept in a round.
        patience: How much a round of waiting adds to the score.
    """

    def __init__(self, *, memory: Fraction = 0.9, patience: Fraction = 0.01) -> None:
        self.memory = memory  # a Fraction is a number from 0 to 1, and anything else is refused
        self.patience = patience

    def reset(self, n_clients: int) -> None:
        """Allocate the state; names of what is learned end in an underscore."""
        super().reset(n_clients)
        self.score_ = np.ones(n_clients)
        self.last_ = np.full(n_clients, -1.0)

    def select(self, ctx: turnout.RoundContext, rng: np.random.Generator) -> turnout.Selection:
        """Choose; the state stays as it is, and randomness is an argument."""
        waited = np.maximum(ctx.round - self.last_, 0.0)
        score = self.score_ + self.patience * waited
        ranking = top_m(ctx.of_pool(score), ctx.size, rng)
        return turnout.Selection(ctx.round, ctx.pool[ranking.chosen])

    def observe(self, selection: turnout.Selection, outcome: turnout.Outcome) -> None:
        """Learn from what happened; it may come late, with the round in the selection."""
        chosen = selection.clients
        self.score_[chosen] *= self.memory
        self.score_[chosen] += (1.0 - self.memory) * outcome.completed
        self.last_[chosen] = np.maximum(self.last_[chosen], selection.round)


# %% [markdown]
# ## Check it
#
# Some rules of the contract are easy to break without noticing: `select` must not change anything, feedback
# may come late, clients may join, and a saved state must resume bit for bit. The checks test these rules, and
# each one says how to fix what it finds. One problem remains here: the docstring does not name a paper yet.

# %%
for result in check_selector(Patient, effort=0.1):
    print(f"{result.name:20} {'ok' if result.passed else result.message}")

# %% [markdown]
# ## Try it
#
# Patience buys fairness at the price of replies. The figure shows the exchange rate.

# %%
world = e3cs_world(n_clients=100, seed=1)
figure, axes = plt.subplots(figsize=(5.2, 3.4), layout="constrained")
for patience in (0.001, 0.003, 0.01, 0.03, 0.1):
    run = turnout.simulate(Patient(patience=patience), world, cohort_size=20, n_rounds=500)
    least = run.counts.min() / run.n_rounds
    axes.plot(least, run.success_ratio, "o", color="C0")
    axes.text(least, run.success_ratio, f"  {patience:g}")
    print(
        f"patience {patience:<5g}: {run.success_ratio:.0%} answered, nobody below {least:.1%} of rounds"
    )
run = turnout.simulate("random", world, cohort_size=20, n_rounds=500)
axes.plot(run.counts.min() / run.n_rounds, run.success_ratio, "x", color="C1", label="random")
axes.set(xlabel="share of rounds of the least chosen client", ylabel="share of answers")
axes.legend(frameon=False)
plt.show()

# %% [markdown]
# ## Use it everywhere
#
# Put the class into a file `patient.py` in the working directory, and use its path as its name:
#
# ```sh
# turnout check patient:Patient
# turnout compare random e3cs patient:Patient --rounds 300 --seeds 5
# ```
#
# In Flower: `SelectingStrategy(FedAvg(), "patient:Patient", cohort_size=20)`. To add a selector to this
# repository, with its paper and its proofs, follow [Contributing](../CONTRIBUTING.md).
#
# Next: [bring your own data](04_own_data.py).
