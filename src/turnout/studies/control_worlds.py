"""What the controls need beside the package's own worlds: data, rivals and a measure.

Everything here uses the plug-in points that users have: ``controls.toml`` names the source, the
partition, the population and the selectors by their paths.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from turnout.core.domains import CheckedFields, Count, Fraction, NonNegative, integer
from turnout.core.errors import InvalidInput
from turnout.core.selector import Selector
from turnout.core.types import Array, FloatArray, IntArray, Outcome, RoundContext, Selection
from turnout.data.base import Assignment, Dataset, Draw, Partition, Source
from turnout.data.partitions import equal_offsets, labels_of
from turnout.experiment import Cell
from turnout.experiment.config import world_of
from turnout.results.metric import Metric
from turnout.sampling import top_m
from turnout.selectors.rbcs_f import RBCSF
from turnout.studies.measures import MEASURES
from turnout.worlds import Population
from turnout.worlds.base import WorldStream, fixed_rng


@dataclass(frozen=True, slots=True)
class Dialects(CheckedFields, Source):
    """Authors who write in dialects, and a test text in the rich dialects alone.

    Every dialect has its own words, and each word has one successor. A plain dialect has a few
    words and is learned in a round or two. A rich one takes long, so its authors keep a high loss.
    Hence authors with the same words are equally useful, and only the rich dialects help the test.

    Args:
        n_authors: Number of authors; dialects are dealt out evenly, in random order.
        n_dialects: Number of dialects.
        n_rich: How many of them are rich, at most all.
        plain_words: Words of a plain dialect.
        rich_words: Words of a rich dialect.
        sentences: Sentences of each author.
        length: Words that a sentence reads.
        test_sentences: Sentences of the test.

    """

    n_authors: Count = 600
    n_dialects: Count = 10
    n_rich: Count = 1
    plain_words: Annotated[int, integer(2)] = 4
    rich_words: Annotated[int, integer(2)] = 60
    sentences: Count = 10
    length: Count = 10
    test_sentences: Count = 100

    def load(self, seed: int) -> Dataset:
        """Generate the texts."""
        rng = Draw.CONTENT.rng(seed)
        is_rich = np.arange(self.n_dialects) < self.n_rich
        sizes = np.where(is_rich, self.rich_words, self.plain_words)
        first = 1 + np.cumsum(sizes) - sizes  # word 0 stands for unknown words
        successor = _cycles(first, sizes, rng)
        author = np.repeat(np.arange(self.n_authors), self.sentences)
        dialect = rng.permutation(np.arange(self.n_authors) % self.n_dialects)[author]
        tested = rng.integers(min(self.n_rich, self.n_dialects), size=self.test_sentences)

        def texts(spoken: IntArray) -> IntArray:
            words = np.empty((spoken.size, self.length + 1), dtype=np.int64)
            words[:, 0] = first[spoken] + rng.integers(sizes[spoken])
            for place in range(self.length):
                words[:, place + 1] = successor[words[:, place]]
            return words

        written, test = texts(dialect), texts(tested)
        names = [f"word {i} of dialect {d}" for d, size in enumerate(sizes) for i in range(size)]
        return Dataset(
            name="dialects",
            x=written[:, :-1],
            y=written[:, 1:],
            x_test=test[:, :-1],
            y_test=test[:, 1:],
            n_classes=len(names) + 1,
            group=author,
            words=("<unk>", *names),
        )


def _cycles(first: IntArray, sizes: IntArray, rng: np.random.Generator) -> IntArray:
    """Return the successor of each word: the words of a dialect form one random cycle."""
    successor = np.zeros(1 + int(sizes.sum()), dtype=np.int64)
    for start, size in zip(first, sizes, strict=True):
        cycle = start + rng.permutation(size)
        successor[cycle] = np.roll(cycle, -1)
    return successor


@dataclass(frozen=True, slots=True)
class Redundant(CheckedFields, Partition):
    """Most clients hold the same few labels, and the others hold all that there is to learn.

    The model soon knows the common labels, so the losses of clients differ, and they change as it
    learns. Who holds what is drawn at random: it has nothing to do with the order of the clients.

    Args:
        share: Share of the clients that hold only common labels, from 0 to 1.
        common: The first labels are common, this many.
        samples: Examples of each client, drawn from those with its labels. Clients may share them.

    """

    share: Fraction = 0.7
    common: Count = 2
    samples: Count = 30

    def assign(self, dataset: Dataset, n_clients: int, rng: np.random.Generator) -> Assignment:
        """Draw who holds common labels, then the examples."""
        is_common = labels_of(dataset, self)[0] < self.common
        holds_common = rng.permutation(n_clients) < round(self.share * n_clients)
        fewest = min(np.count_nonzero(is_common), np.count_nonzero(~is_common))
        if self.samples > fewest:
            raise InvalidInput(
                f"samples is {self.samples}, but {dataset.name} has only {fewest} examples of the "
                f"common or of the other labels; lower samples, or change common ({self.common}).",
                field="samples",
            )
        rows = [
            rng.choice(np.flatnonzero(is_common == wanted), self.samples, replace=False)
            for wanted in holds_common
        ]
        return np.concatenate(rows), equal_offsets(n_clients * self.samples, n_clients)


@dataclass(frozen=True, slots=True)
class Pairs(Population):
    """Clients whose loss is high where exactly one of their first two bits is set.

    No linear function of the bits says so. The other bits are drawn at random and mean nothing.

    Args:
        samples: Number of examples of every client.
        tail: As for ``Population``.
        level_spread: Half of the distance between the logarithms of the two loss levels, >= 0.
        n_features: Number of bits, at least 2.
        feature_strength: Has no effect here.

    """

    n_features: Annotated[int, integer(2)] = 8

    def loss_level(self, n_clients: int, seed: int) -> FloatArray:
        """Return the higher or the lower level."""
        bits = self.features(n_clients, seed)
        is_odd = bits[:, 0] != bits[:, 1]
        return np.exp(self.level_spread * np.where(is_odd, 1.0, -1.0))

    def features(self, n_clients: int, seed: int) -> Array:
        """Return random bits."""
        rng = fixed_rng(seed, WorldStream.POPULATION, level=2)
        return rng.integers(2, size=(n_clients, self.n_features), dtype=np.uint8)


class MeanSuccess(Selector):
    """UCB1 on the mean success of each client: all rounds count alike, as if rates were fixed.

    It is the stochastic bandit that E3CS argues against (P. Auer, N. Cesa-Bianchi, P. Fischer,
    Finite-time Analysis of the Multiarmed Bandit Problem, 2002), with the k largest indices.

    Args:
        width: What the bonus sqrt(width ln t / n) is made of. 2 is UCB1; 0 follows the mean.
    """

    reports_probability = True

    def __init__(self, *, width: NonNegative = 2.0) -> None:
        self.width = width

    def reset(self, n_clients: int) -> None:
        """Nobody was tried."""
        super().reset(n_clients)
        self.n_chosen_ = np.zeros(n_clients)
        self.n_completed_ = np.zeros(n_clients)

    def select(self, ctx: RoundContext, rng: np.random.Generator) -> Selection:
        """Take the k largest indices; untried clients come first."""
        n, completed = ctx.of_pool(self.n_chosen_), ctx.of_pool(self.n_completed_)
        tried = np.maximum(n, 1.0)
        index = completed / tried + np.sqrt(self.width * np.log(ctx.round + 1) / tried)
        ranking = top_m(np.where(n > 0.0, index, np.inf), ctx.size, rng)
        return Selection(ctx.round, ctx.pool[ranking.chosen], ranking.probability)

    def observe(self, selection: Selection, outcome: Outcome) -> None:
        """Count the answers."""
        self.n_chosen_[selection.clients] += 1.0
        self.n_completed_[selection.clients] += outcome.completed


class WithoutContext(RBCSF):
    """RBCS-F that sees the same context of everyone in every round, and learns mean times."""

    def select(self, ctx: RoundContext, rng: np.random.Generator) -> Selection:
        """Select with all contexts at 1."""
        same = {"context": np.ones_like(ctx.column("context"))}
        return super().select(dataclasses.replace(ctx, columns={**ctx.columns, **same}), rng)


def true_utility(cell: Cell) -> FloatArray:
    """Return (n,) the utility |D| x loss of each client of a simulated world, up to a factor.

    Args:
        cell: A run without training.
    """
    settings = cell.settings
    world = world_of(settings.world, settings.n_clients, settings.seed)
    population = world.population
    level = population.loss_level(settings.n_clients, settings.seed)
    utility: FloatArray = population.num_samples(settings.n_clients, settings.seed) * level
    return utility


def _chosen_utility(cell: Cell) -> float:
    """Return the mean utility of the chosen: 0 is that of all clients, 1 that of the best."""
    utility = true_utility(cell)
    best = np.sort(utility)[-cell.settings.cohort_size :].mean()
    chosen = utility[cell.run.clients].mean()
    return float((chosen - utility.mean()) / (best - utility.mean()))


MEASURES["chosen-utility"] = Metric(
    key="chosen-utility",
    title="utility of the chosen, 0 = mean, 1 = best",
    decimals=3,
    meaning=_chosen_utility.__doc__ or "",
    compute=_chosen_utility,
)
