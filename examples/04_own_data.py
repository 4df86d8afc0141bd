# %% [markdown]
# # 4. Your own data
#
# Data are two arrays for training and two for testing. An optional array names the owner of each example.
# Here, the data are 569 breast tumours measured under the microscope (they come with scikit-learn). Ten
# hospitals hold them. Larger tumours go to larger hospitals, so no two hospitals see the same mix.

# %%
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_breast_cancer

from turnout import train
from turnout.data import Arrays, Natural, federate
from turnout.training import LocalWork, Logistic, Training
from turnout.worlds import ByClass, Environment

table = load_breast_cancer()
names = table.target_names[table.target]  # "benign" or "malignant": words, as in most files

# %% [markdown]
# Labels are numbers from 0, or words. Here, `np.unique` numbers them, because the code below counts them by
# number. Scale the columns with statistics of the training part only.

# %%
rng = np.random.default_rng(0)
order = rng.permutation(len(names))
classes, labels = np.unique(names[order], return_inverse=True)
x = table.data[order]
is_test = np.arange(len(x)) % 5 == 0
mean, spread = x[~is_test].mean(axis=0), x[~is_test].std(axis=0)
x = ((x - mean) / spread).astype(np.float32)

radius = x[~is_test, 0] + rng.normal(0, 0.7, (~is_test).sum())
hospital = np.searchsorted(np.quantile(radius, np.linspace(0, 1, 11)[1:-1]), radius)

source = Arrays(
    x[~is_test], labels[~is_test], x[is_test], labels[is_test], group=hospital, name="tumours"
)

# %% [markdown]
# `Natural()` makes each owner a client. Without owners, use any other partition: `Dirichlet`,
# `Shards`, `PrimaryLabel` and so on.

# %%
data = federate(source, Natural(), n_clients=10, seed=0)
for client, counts in enumerate(data.label_counts):
    print(f"hospital {client}: {counts[0]:2d} {classes[0]}, {counts[1]:2d} {classes[1]}")

# %% [markdown]
# ## Train
#
# Three of ten hospitals take part in a round, and every third reply is lost. Does it help to select hospitals
# where the model is still bad? `pow-d` first polls some of them for their loss and selects the highest.

# %%
local = LocalWork(epochs=1, batch_size=10, lr=0.02)
recipe = Training(source, Natural(), model=Logistic(), local=local)
figure, axes = plt.subplots(figsize=(6, 3.4), layout="constrained")
for name in ("random", "pow-d", "e3cs"):
    losses = []
    for seed in range(5):
        world = Environment(10, seed=seed, volatility=ByClass(rates=(0.67,)))
        losses.append(train(name, recipe, world, cohort_size=3, n_rounds=30).loss)
    axes.plot(np.arange(1, 31), np.mean(losses, axis=0), label=name)
    axes.fill_between(np.arange(1, 31), np.min(losses, axis=0), np.max(losses, axis=0), alpha=0.15)
    print(f"{name:7} loss after 30 rounds: {np.mean(losses, axis=0)[-1]:.3f} (mean of 5 seeds)")
axes.set(xlabel="round", ylabel="loss on the test set; band: lowest to highest seed")
axes.legend(frameon=False)
plt.show()

# %% [markdown]
# It makes no difference here: after 30 rounds, all three have the same loss, whatever the seed. A linear model
# on so little data learns from any client that replies. Measure before you choose.
#
# ## From a file
#
# The command line and TOML files name data by a file. Write one, and look at it:

# %%
np.savez(
    "tumours.npz",
    x_train=x[~is_test],
    y_train=labels[~is_test],
    x_test=x[is_test],
    y_test=labels[is_test],
    hospital_train=hospital,
)

# %% [markdown]
# ```sh
# turnout data show array-file:path=tumours.npz,group=hospital --partition natural --clients 10
# turnout compare random pow-d --train --data array-file:path=tumours.npz,group=hospital \
#     --partition natural --clients 10 --cohort 3 --model logistic --rounds 30 --seeds 5
# ```
#
# [Load and partition data](../docs/howto/data.md) covers images, texts, downloads and all partitions.
#
# Next: [use it in Flower](05_flower.py).
