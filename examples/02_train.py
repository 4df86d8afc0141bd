# %% [markdown]
# # 2. Train
#
# Replies are a means; a good model is the end. Here, a small network learns handwritten digits from 50
# clients that hold two kinds of digits each. Slow clients miss the deadline, and others crash.

# %%
import matplotlib.pyplot as plt
import numpy as np

from turnout import train
from turnout.data import Digits, Shards
from turnout.training import LocalWork, Mlp, Training
from turnout.worlds import DeviceTimes, Environment, FixedDeadline, Markov

recipe = Training(
    Digits(),
    Shards(per_client=2),
    model=Mlp(hidden=(64,)),
    local=LocalWork(epochs=3, batch_size=10, lr=0.05),
)

# %% [markdown]
# In this world, clients fail in streaks (a phone that loses its signal has none for a while), and their
# devices differ in speed. A round ends after 60 virtual seconds, and later replies do not count.

# %%
world = Environment(
    50,
    seed=3,
    volatility=Markov(rates=(0.2, 0.9), stickiness=0.8),
    timing=DeviceTimes(),
)
policy = FixedDeadline(60.0)

# %% [markdown]
# Everything else is the same for all selectors: the data of each client, the initial model, every mini-batch
# and every failure.

# %%
runs = {
    name: train(name, recipe, world, cohort_size=10, n_rounds=60, policy=policy)
    for name in ("random", "e3cs", "oort")
}
for name, run in runs.items():
    last = np.nanmean(run.accuracy[-5:])
    print(f"{name:7} {run.success_ratio:.0%} in time, accuracy {last:.1%} after 60 rounds")

# %%
figure, axes = plt.subplots(figsize=(6, 3.4), layout="constrained")
for name, run in runs.items():
    axes.plot(run.clock_s / 60, run.accuracy, label=name)
axes.set(xlabel="virtual minutes", ylabel="accuracy on the test set", ylim=(0, 1))
axes.legend(frameon=False)
plt.show()

# %% [markdown]
# This is one seed. Before you trust a ranking, repeat it:
#
# ```sh
# turnout compare random e3cs oort --train --partition shards:per_client=2 --rounds 100 --seeds 5
# ```
#
# turnout never trains clients that fail, because the world decides their fate first. Sixty rounds therefore
# take seconds. [Choose a model, local work and aggregation](../docs/howto/models.md) explains the parts of a
# recipe, and [train with selected clients](../docs/howto/training.md) explains the rest of the loop.
#
# Next: [write your own selector](03_own_selector.py).
