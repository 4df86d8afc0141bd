# %% [markdown]
# # 1. Simulate
#
# Which clients should take part in a round? Before you train anything, simulate the rounds without a model.
# This takes seconds and shows which clients are selected, which ones reply and which ones are left out.
#
# A *world* determines which clients are available, which ones fail and how long they take. This world comes
# from the E3CS paper: four classes of 25 clients, which reply in 10, 30, 60 and 90 % of the rounds. The
# server does not know the class of a client.

# %%
import matplotlib.pyplot as plt
import numpy as np

import turnout
from turnout.experiment import Experiment, run_experiment
from turnout.results.metrics import jain_of_counts
from turnout.worlds import e3cs_world

world = e3cs_world(n_clients=100, seed=1)

# %% [markdown]
# ## Three selectors in the same world
#
# Most systems select at random, as `random` does. `fedcs` knows the reliability of every client in advance,
# so it is an upper bound and not a fair rival. `e3cs` learns the reliability from the replies. With
# `quota=0.5`, it gives half of the places to all clients with equal chances, so no client is left out.
#
# All three meet the same failures: whether a client would reply in a round does not depend on the selector.

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
# More replies cost fairness. Jain's index is 1 if all clients were selected equally often, and 0.2 if a fifth
# of the clients got everything. The figure shows both sides: how the share of replies grows while a selector
# learns, and which clients it selected.

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
# selectors, so turnout computes differences seed by seed, which makes their intervals narrow. The folder
# keeps everything: if you run the cell again, nothing is computed twice.

# %%
experiment = Experiment(["random", "e3cs:quota=0.5"], world="e3cs", n_rounds=300, seeds=5)
results = run_experiment(experiment, "runs/tutorial-simulate", n_jobs=1)
gain = results.difference("success_ratio", "random")["e3cs quota=0.5"].estimate
print(f"e3cs gets {gain.mean:.3f} ± {gain.half_width:.3f} more answers per place (95 % interval)")

# %% [markdown]
# You can do the same in a terminal, with a page of figures at the end:
#
# ```sh
# turnout compare random e3cs:quota=0.5 --world e3cs --rounds 300 --seeds 5 --out runs/mine
# turnout report runs/mine
# ```
#
# Next: [train a model while clients fail](02_train.py). [Run experiments](../docs/howto/experiments.md) has
# more about worlds and grids.
