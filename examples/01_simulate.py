# %% [markdown]
# # 1. Simulate
#
# Who should take part in a round? Before you train anything, play the rounds without a model: it takes
# seconds, and you see who is chosen, who answers and who is left out.
#
# A *world* says who is available, who fails and how long everyone takes. This one is that of the E3CS
# paper: four classes of 25 clients, which answer in 10, 30, 60 and 90 % of the rounds. The server does not
# know which client is in which class.

# %%
import matplotlib.pyplot as plt
import numpy as np

import turnout
from turnout.environments import e3cs_world
from turnout.experiment import Experiment, run_experiment
from turnout.metrics import jain_of_counts

world = e3cs_world(n_clients=100, seed=1)

# %% [markdown]
# ## Three selectors in the same world
#
# `random` is what most systems do. `fedcs` is told how reliable everyone is, so it is an upper bound and not
# a fair rival. `e3cs` learns it from who answered. `quota=0.5` gives half of the places at equal chances, so
# that nobody is left out.
#
# All three meet the same failures: who would answer in a round does not depend on who asks.

# %%
selectors = {
    "random": turnout.make("random"),
    "e3cs": turnout.make("e3cs", quota=0.5),
    "fedcs": turnout.make("fedcs"),
}
runs = {
    name: turnout.simulate(selector, world, cohort_size=20, n_rounds=500)
    for name, selector in selectors.items()
}
for name, run in runs.items():
    fairness = jain_of_counts(run.counts)
    print(f"{name:8} {run.success_ratio:.0%} answered, Jain's index of choices {fairness:.2f}")

# %% [markdown]
# More answers cost fairness. Jain's index is 1 if all were chosen equally often, and 0.2 if a fifth of the
# clients got everything. The figure shows both sides: how the share of answers grows while a selector
# learns, and whom it chose.

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
rounds = np.arange(1, 501)
for name, run in runs.items():
    left.plot(rounds, run.cep / (20 * rounds), label=name)
    right.plot(np.sort(run.counts)[::-1] / run.n_rounds, label=name)
left.set(xlabel="round", ylabel="answers per place, so far", ylim=(0, 1))
right.set(xlabel="clients, the most chosen first", ylabel="share of rounds", ylim=(0, 1.05))
left.legend(frameon=False)
plt.show()

# %% [markdown]
# ## Is the difference real?
#
# One run is one throw of the dice. An *experiment* repeats it over seeds. Worlds are the same for all
# selectors, so differences are taken seed by seed, which makes their intervals narrow. The folder keeps
# everything; run the cell again and nothing is computed twice.

# %%
experiment = Experiment(["random", "e3cs:quota=0.5"], world="e3cs", n_rounds=300, seeds=5)
grid = run_experiment(experiment, "runs/tutorial-simulate", n_jobs=1)
gain = grid.difference("e3cs quota=0.5", "random", "success_ratio")
print(f"e3cs gets {gain.mean:.3f} ± {gain.half_width:.3f} more answers per place (95 % interval)")

# %% [markdown]
# The same in a terminal, with a page of figures at the end:
#
# ```sh
# turnout compare random e3cs:quota=0.5 --world e3cs --rounds 300 --seeds 5 --out runs/mine
# turnout report runs/mine
# ```
#
# Next: [train a model while clients fail](02_train.py). More about worlds and grids:
# [run experiments](../docs/howto/experiments.md).
