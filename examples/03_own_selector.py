# %% [markdown]
# # 3. Your own selector
#
# A selector is a class with three methods: `reset` allocates what is learned, `select` chooses, `observe`
# learns. Save, load, resume, the checks, the command line and Flower then work with it.
#
# This one keeps the share of answers of each client, forgets slowly, and gives a part of the places to
# whoever waited longest.

# %%
import matplotlib.pyplot as plt
import numpy as np

import turnout
from turnout import require
from turnout.environments import e3cs_world
from turnout.sampling import top_m
from turnout.testing import check_selector


class Patient(turnout.Selector):
    """Reliable clients, and those who waited longest.

    Args:
        memory (number in [0, 1]): How much of the score is kept in a round.
        patience (number in [0, 1]): How much a round of waiting adds to the score.
    """

    def __init__(self, *, memory: float = 0.9, patience: float = 0.01) -> None:
        self.memory = memory
        self.patience = patience

    def check_parameters(self) -> None:
        """Refuse what makes no sense, with the name of the parameter."""
        require.fraction("memory", self.memory)
        require.fraction("patience", self.patience)

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
# The contract has rules that are easy to break without noticing: `select` must not change anything, feedback
# may come late, clients may join, a saved state must go on bit for bit. The checks find out, and each says how
# to mend what it found. One is left: the docstring does not name a paper yet.

# %%
for result in check_selector(Patient, effort=0.1):
    print(f"{result.name:20} {'ok' if result.passed else result.message}")

# %% [markdown]
# ## Try it
#
# Patience is a price for fairness. The figure shows how much of one buys how much of the other.

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
# Put the class into a file `patient.py` beside you, and its path is its name:
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
