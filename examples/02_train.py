# %% [markdown]
# # 2. Train
#
# Answers are a means; a good model is the end. Here a small network learns handwritten digits from 50
# clients that hold two kinds of digits each. Slow clients miss the deadline, others crash.

# %%
import matplotlib.pyplot as plt
import numpy as np

from turnout import train
from turnout.data import Digits, Shards
from turnout.environments import DeviceTimes, Environment, Markov
from turnout.policies import FixedDeadline
from turnout.training import LocalWork, Mlp, Training

recipe = Training(
    Digits(),
    Shards(per_client=2),
    model=Mlp(hidden=(64,)),
    local=LocalWork(epochs=3, batch_size=10, lr=0.05),
)

# %% [markdown]
# The world: clients fail in streaks (a phone without signal stays so for a while) and their devices differ
# in speed. A round ends after 60 virtual seconds, and later answers do not count.

# %%
world = Environment(
    50,
    seed=3,
    volatility=Markov(rates=(0.2, 0.9), stickiness=0.8),
    timing=DeviceTimes(),
)
policy = FixedDeadline(60.0)

# %% [markdown]
# Everything else is the same for all selectors: the data of each client, the first model, every mini-batch,
# every failure.

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
# This is one seed. Before you believe a ranking, repeat it:
#
# ```sh
# turnout compare random e3cs oort --train --partition shards:per_client=2 --rounds 100 --seeds 5
# ```
#
# Clients that fail are never trained, because the world decides their fate first; sixty rounds take seconds.
# What a recipe can hold is in [models, local work, aggregation](../docs/howto/models.md), the rest of the
# loop in [train under selection](../docs/howto/training.md).
#
# Next: [write a selector of your own](03_own_selector.py).
