"""The clients of the round loop when they train a real model together.

Clients may keep the buffers of their model to themselves, as in SiloBN (Andreux et al., Siloed
Federated Learning for Multi-Centric Histopathology Datasets, 2020): weights are averaged, but the
running moments of batch normalisation stay where they were measured.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from turnout.core import require
from turnout.core.arrays import LARGEST_REPORT, UPDATE_METRICS
from turnout.core.errors import InvalidInput
from turnout.core.names import import_object
from turnout.core.plain import below
from turnout.core.rng import Purpose, stream
from turnout.core.types import Array, BoolArray, FloatArray, IntArray, PollData, Selection
from turnout.data import FederatedData, federate
from turnout.results import metrics
from turnout.training.aggregate import Answered, RememberingAggregation, aggregate
from turnout.training.base import Clients, ClientScores, LocalAlgorithm, Trainer, Updates
from turnout.training.local import examples_seen
from turnout.training.recipe import TRAINERS, Training
from turnout.training.versions import Done, Versions, deviations
from turnout.worlds import Answers

if TYPE_CHECKING:
    import torch
    from torch import Tensor


#: Scores of the model that a selector sees, in the order in which a state keeps them.
_EVALUATED = ("accuracy", "loss")
_LOSSES = ("loss", "loss_std", "loss_rms")
#: How the names of the models in flight begin in a state.
_VERSIONS = "versions."


class Trained(NamedTuple):
    """What the chosen clients did in a round; arrays are in the order of the selection.

    Args:
        is_broken: (s,) which clients trained to a loss or weights that are not finite. They count
            as failed.
        metrics: The reports by name, (s,) or (s, d) each; NaN for clients that did not train.

    """

    is_broken: BoolArray
    metrics: Mapping[str, FloatArray]


class Federation:
    """A global model and the clients that train it, for ``turnout.experiment.rounds``.

    Args:
        training: The recipe.
        n_clients: Number of clients.
        seed: Fixes generated data, its division, the first model and every mini-batch.
        data: The divided data, in place of the recipe's source and partition.

    """

    hides = frozenset({"label_counts"})  #: what the world says of labels is not about these data

    def __init__(
        self,
        training: Training,
        n_clients: int,
        seed: int = 0,
        *,
        data: FederatedData | None = None,
    ) -> None:
        require.instance("training", training, Training)
        require.integer("n_clients", n_clients, minimum=1)
        if data is not None:
            require.instance("data", data, FederatedData)
        self.training = training
        self.data = _federated(training, n_clients, seed) if data is None else data
        if self.data.n_clients != n_clients:
            raise InvalidInput(
                f"data has {self.data.n_clients} clients, but n_clients is {n_clients}.",
                field="data",
            )
        self._seed = seed
        if self.data.has_targets and training.target_accuracy:
            raise InvalidInput(
                f"target_accuracy needs labels, and {self.data.name} has targets of a regression: "
                "leave it out and look at the loss.",
                field="target_accuracy",
            )
        if training.buffers == "local" and training.local.algorithm:
            raise InvalidInput(
                "buffers must be 'average' with a local algorithm, which learns at the end of each "
                "round: with 'local', clients train one at a time.",
                field="buffers",
            )
        self.trainer = self.make_trainer(seed)
        #: Whether a trial chose the trainer, so that a resumed run must be told.
        self._was_tried = training.trainer == "fast" and bool(getattr(self.trainer, "why", ""))
        self.columns: Mapping[str, Array] = _columns(self.data, training.label_noise, seed)
        seen = examples_seen(self.data.num_samples, training.local.batch_size, self.trainer.steps)
        self.workload: FloatArray = seen / seen.mean()
        self.report({})
        self.reset()

    def make_trainer(self, seed: int) -> Trainer:
        """Return what trains and evaluates models; override it for local work of your own.

        Args:
            seed: Fixes the first model and every mini-batch.
        """
        return self._trainer(self.training.trainer, seed)

    def _trainer(self, name: str, seed: int) -> Trainer:
        importlib.import_module("turnout.training.modules")  # says what to install without PyTorch
        recipe = self.training
        trainer: Trainer = import_object(TRAINERS[name])(
            self.data, recipe.model, recipe.local, seed, recipe.device
        )
        return trainer

    @property
    def reportable(self) -> frozenset[str] | None:
        """The names of all metrics that clients can report; None if a subclass has its own work."""
        is_ours = type(self).work is Federation.work
        return frozenset((*_LOSSES, *UPDATE_METRICS)) if is_ours else None

    def report(self, metrics: Mapping[str, int | None]) -> None:
        """Say what the selector needs beside losses; nothing else is computed.

        Args:
            metrics: The length of the vectors of each metric; None for single numbers.

        Raises:
            MissingMetric: The selector asks for a vector of another length than the model has.
        """
        from turnout.training.reference import UpdateReports

        self._updates = UpdateReports(self.trainer, metrics)

    def reset(self) -> None:
        """Go back to the first global model."""
        self.weights: torch.Tensor = self.trainer.initial_weights()
        self.evaluated: dict[str, float] = {}  #: the scores of the last evaluation
        self.n_broken = 0  #: answers so far that could not be used
        self.is_done = False
        self._train_loss = math.nan
        self._scores: ClientScores | None = None
        self._moments = {
            name: self.weights[: self._n_weights].clone().zero_()
            for name in self.training.server.moments
        }
        keeps_own = self.training.buffers == "local" and self.trainer.n_buffers > 0
        self._kept = KeptBuffers(self.trainer) if keeps_own else None
        self._memory = self.training.aggregation.start(self.data.n_clients, self._n_weights)
        self._versions: Versions | None = None  # only where rounds overlap
        if self._algorithm is not None:
            self._algorithm.reset(
                self.data.n_clients, self.trainer.n_weights - self.trainer.n_buffers
            )

    @property
    def _n_weights(self) -> int:
        """Weights of the model, without buffers."""
        return self.trainer.n_weights - self.trainer.n_buffers

    @property
    def _algorithm(self) -> LocalAlgorithm | None:
        """What clients do beside gradient steps, with state of its own."""
        return getattr(self.trainer, "algorithm", None)

    @property
    def _clients(self) -> Clients:
        return self.trainer if self._kept is None else self._kept

    def polled_loss(self, round: int, clients: IntArray, data: PollData) -> FloatArray:
        """Return the loss of the global model on the data of some clients; NaN if not finite."""
        return _possible(self._clients.polled_loss(self.weights, clients, round, data))

    def work(self, selection: Selection, is_completed: BoolArray) -> Trained:
        """Train the clients that completed the round, then aggregate the usable models."""
        is_broken = np.zeros(is_completed.size, dtype=np.bool_)
        reported = {name: np.full(is_completed.size, np.nan) for name in _LOSSES}
        for name, size in self._updates.asked.items():
            shape = (is_completed.size,) if size is None else (is_completed.size, size)
            reported[name] = np.full(shape, np.nan)
        self._train_loss = math.nan
        returned = np.zeros(self.data.n_clients, dtype=np.bool_)
        if is_completed.any():
            self._scores = None
            clients = selection.clients[is_completed]
            updates = self._clients.train(self.weights, clients, selection.round)
            is_sound = np.isfinite(_possible(updates.loss))
            for name, values in self._updates.of(self.weights, updates.weights).items():
                reported[name][np.flatnonzero(is_completed)[is_sound]] = values[is_sound]
            if is_sound.any():
                self._aggregate(updates, is_sound, selection, is_completed)
            returned[clients[is_sound]] = True
            is_broken[is_completed] = ~is_sound
            self.n_broken += int(np.sum(~is_sound))
            for name in _LOSSES:
                values = _possible(getattr(updates, name))
                reported[name][is_completed] = np.where(is_sound, values, np.nan)
        self.training.aggregation.remember(self._memory, returned)
        return Trained(is_broken, reported)

    # Rounds that overlap.

    def check_overlap(self) -> None:
        """Refuse recipes that need synchronous rounds."""
        if self._kept is not None:
            raise InvalidInput(
                "buffers must be 'average' where rounds overlap: a client's own buffers would be "
                "used before it answers.",
                field="buffers",
            )
        if self._algorithm is not None:
            raise InvalidInput(
                f"local.algorithm {type(self._algorithm).__name__} needs synchronous rounds: it "
                "learns at the end of each round.",
                field="algorithm",
            )
        rule = self.training.aggregation
        if rule.needs_probability or isinstance(rule, RememberingAggregation):
            raise InvalidInput(
                f"aggregation {type(rule).__name__} needs synchronous rounds: "
                "the answers of a round that overlaps come from several draws. Use MeanReturned().",
                field="aggregation",
            )

    def start(self, round: int, clients: IntArray) -> None:
        """Give clients the present model; they train when the first answer on it is due."""
        if self._versions is None:
            self._versions = Versions()
        self._versions.start(self.weights, round, clients)

    def finish(self, rounds: IntArray, clients: IntArray) -> Trained:
        """Return what clients report, each for its choice, on the model that it got."""
        versions = self._versions
        pieces = list(zip(rounds.tolist(), clients.tolist(), strict=True))
        asked: dict[str, int | None] = dict.fromkeys(_LOSSES) | dict(self._updates.asked)
        reported = {
            name: np.full(clients.size if size is None else (clients.size, size), np.nan)
            for name, size in asked.items()
        }
        is_broken = np.zeros(clients.size, dtype=np.bool_)
        if versions is None:
            return Trained(is_broken, reported)
        for number in sorted({versions.due[piece] for piece in pieces if piece in versions.due}):
            self._train_version(versions, number)
        for row, piece in enumerate(pieces):
            for name, value in versions.done[piece].reports.items():
                reported[name][row] = value
            is_broken[row] = not math.isfinite(versions.done[piece].reports["loss"])
            if is_broken[row]:
                del versions.done[piece]
        self.n_broken += int(is_broken.sum())
        return Trained(is_broken, reported)

    def take_in(self, answers: Answers) -> None:
        """Make the next model: each answer adds its step from the model that it started from."""
        versions = self._versions
        if versions is None:
            return
        self._train_loss = math.nan
        pieces = zip(answers.choices.tolist(), answers.clients.tolist(), strict=True)
        done = [versions.done.pop(piece) for piece in pieces]
        if done:
            self._scores = None
            examples = np.array([each.num_examples for each in done])
            total = int(self.data.num_samples.sum())
            fresh = versions.number
            bases = [
                None if answers.mixes or each.version == fresh else versions.models[each.version]
                for each in done
            ]
            local = [each.weights for each in done]
            factor = answers.rule.of_updates(
                answers.staleness, lambda: deviations(self.weights, local, bases, self._n_weights)
            )
            coefficients = factor * self.training.aggregation.coefficients(
                examples, None, total, answers.times
            )
            lr = self.training.server_lr
            new = aggregate(self.weights, local, coefficients, lr, bases)
            self._step(new, local, coefficients, fresh)
            losses = [float(each.reports["loss"]) for each in done]
            self._train_loss = float(np.average(losses, weights=examples))
        versions.advance()

    def _train_version(self, versions: Versions, number: int) -> None:
        """Let all clients train that have begun on a version."""
        base = versions.models[number]
        rounds, clients = versions.begun_on(number)
        updates = self.trainer.train(base, clients, number, rounds)
        reports = {name: _possible(getattr(updates, name)) for name in _LOSSES}
        is_sound = np.isfinite(reports["loss"])
        reports |= self._updates.of(base, updates.weights)
        for row, piece in enumerate(zip(rounds.tolist(), clients.tolist(), strict=True)):
            own = {
                name: values[row] if is_sound[row] else np.full_like(values[row], np.nan)
                for name, values in reports.items()
            }
            weights = updates.weights[row].clone()
            versions.finished(piece, Done(number, weights, int(updates.num_examples[row]), own))

    def measure(self, round: int, is_last: bool) -> dict[str, float]:
        """Return how good the model is, in the rounds in which the recipe evaluates it.

        ``accuracy`` and ``loss`` are on the test set, ``holdout_accuracy`` and ``holdout_loss`` on
        what all clients hold out, pooled (the test of E3CS; missing without a hold-out).
        ``train_loss`` is the mean of what this round's clients reported, by data. The others are
        about every client's own examples: ``local_loss`` by data, ``jain_of_losses`` (UCB-CS,
        Eq. (3)), and ``worst_accuracy``, the mean over the worst tenth of the clients.
        """
        training, values = self.training, {"train_loss": self._train_loss}
        if self._versions is not None:
            values["models_kept"] = float(self._versions.n_kept)
        if is_last or (round + 1) % training.evaluate_every == 0:
            scores = self.trainer.test(self.weights)
            values |= {"accuracy": scores.accuracy, "loss": scores.loss}
            known = {name: values[name] for name in _EVALUATED}
            self.evaluated = {name: x for name, x in known.items() if not math.isnan(x)}
            if self.data.has_holdout:
                pooled = self.trainer.test_holdout(self.weights)
                values |= {"holdout_accuracy": pooled.accuracy, "holdout_loss": pooled.loss}
            has_reached = bool(training.target_accuracy) and (
                scores.accuracy >= max(training.target_accuracy)
            )
            self.is_done = training.stop_at_target and has_reached
        is_last = is_last or self.is_done
        if is_last or (round + 1) % training.evaluate_clients_every == 0:
            values |= self.client_numbers()
        return {name: value for name, value in values.items() if math.isfinite(value)}

    def client_scores(self) -> ClientScores:
        """Return loss and accuracy of the global model on each client's own examples."""
        if self._scores is None:
            self._scores = self._clients.test_clients(self.weights)
        return self._scores

    def client_numbers(self) -> dict[str, float]:
        """Return a summary of the scores of all clients; empty if no client has examples.

        A client on whose examples the model diverged counts with the worst scores: loss
        ``LARGEST_REPORT``, accuracy 0. With any such client Jain's index has its lowest value,
        1 / clients.
        """
        scores = self.client_scores()
        is_known = np.isfinite(scores.loss)
        if not is_known.any():
            return {}
        loss = scores.loss[is_known]
        has_diverged = bool(loss.max() >= LARGEST_REPORT)
        return {
            "local_loss": float(np.average(loss, weights=self.data.num_samples[is_known])),
            "jain_of_losses": 1 / loss.size if has_diverged else metrics.jain_of_losses(loss),
            "worst_accuracy": metrics.worst_mean(scores.accuracy[is_known]),
        }

    def module(self) -> torch.nn.Module:
        """Return a copy of the model with the global weights."""
        return self.trainer.module_with(self.weights)

    def state(self) -> dict[str, Array]:
        """Return the global model and the counters as arrays."""
        state = {
            "weights": self.weights.cpu().numpy(),
            "n_broken": np.array(self.n_broken),
            "is_done": np.array(self.is_done),
            "evaluated": np.array([self.evaluated.get(name, np.nan) for name in _EVALUATED]),
        }
        state |= {f"server.{name}": x.cpu().numpy() for name, x in self._moments.items()}
        state |= {f"aggregation.{name}": x.copy() for name, x in self._memory.items()}
        if self._versions is not None:
            own = self._versions.state()
            state |= {f"{_VERSIONS}{name}": values for name, values in own.items()}
        if self._algorithm is not None:
            state |= {f"algorithm.{name}": x for name, x in self._algorithm.state().items()}
        if self._was_tried:
            state["is_reference"] = np.array(_is_reference(self.trainer))
        return state if self._kept is None else state | {"buffers": self._kept.values.cpu().numpy()}

    def load_state(self, state: Mapping[str, Array]) -> None:
        """Continue from the result of ``state``."""
        import torch

        def saved(name: str, like: torch.Tensor) -> torch.Tensor:
            values = torch.from_numpy(np.array(state[name]))
            if values.shape != like.shape or values.dtype != like.dtype:
                raise InvalidInput(
                    f"{name} must be {like.numel()} numbers of {like.dtype} for this model, got "
                    f"{tuple(values.shape)} of {values.dtype}."
                )
            return values.to(like.device)

        if self._was_tried and "is_reference" in state:
            was = bool(state["is_reference"])
            if was != _is_reference(self.trainer):
                self.trainer = self._trainer("reference" if was else "batched", self._seed)
        self.reset()
        self.weights = saved("weights", self.weights)
        self._moments = {name: saved(f"server.{name}", x) for name, x in self._moments.items()}
        self._memory = {
            name: saved(f"aggregation.{name}", torch.from_numpy(x)).numpy()
            for name, x in self._memory.items()
        }
        if self._kept is not None:
            self._kept.values = saved("buffers", self._kept.values)
        if f"{_VERSIONS}number" in state:
            self._versions = Versions()
            self._versions.load_state(below(_VERSIONS, state), self.weights)
        if self._algorithm is not None:
            self._algorithm.load_state(below("algorithm.", state))
        self.n_broken, self.is_done = int(state["n_broken"]), bool(state["is_done"])
        scores = state.get("evaluated", np.full(len(_EVALUATED), np.nan))  # 0.1 saved none
        known = zip(_EVALUATED, scores.tolist(), strict=True)
        self.evaluated = {name: value for name, value in known if not math.isnan(value)}

    def _aggregate(
        self,
        updates: Updates,
        is_sound: BoolArray,
        selection: Selection,
        is_completed: BoolArray,
    ) -> None:
        used = np.flatnonzero(is_completed)[is_sound]
        examples, chance = updates.num_examples[is_sound], selection.probability
        answered = Answered(
            selection.clients[used],
            examples,
            None if chance is None else chance[used],
            selection.times[used],
            self.data.num_samples,
        )
        rule = self.training.aggregation
        models = updates.weights if is_sound.all() else updates.weights[is_sound]
        coefficients = rule.weigh(answered, self._memory)
        lr = self.training.server_lr
        new = rule.combined(self.weights, models, answered, self._memory, lr)
        self._step(new, models, coefficients, selection.round)
        if is_sound.any():
            self._train_loss = float(np.average(updates.loss[is_sound], weights=examples))

    def _step(
        self,
        new: Tensor,
        local: Tensor | Sequence[Tensor],
        coefficients: FloatArray,
        round: int,
    ) -> None:
        """Make the next global model of the aggregated one; ``local`` are those it was made of."""
        n, weights = self._n_weights, self.weights
        if coefficients.any():
            server = self.training.server
            new[:n] = server.step(weights[:n], new[:n], self._moments, round)
            if self.trainer.n_buffers:  # running moments are no step: their mean is a whole one
                share = coefficients / coefficients.sum()
                new[n:] = aggregate(weights[n:], [own[n:] for own in local], share)
        self.weights = new


def federation_of(
    training: Training, n_clients: int, seed: int = 0, *, data: FederatedData | None = None
) -> Federation:
    """Return the participants of a recipe: a ``Federation``, or your own subclass of it.

    Args:
        training: The recipe.
        n_clients: Number of clients.
        seed: As in ``Federation``.
        data: As in ``Federation``.
    """
    kind = import_object(training.participants) if training.participants else Federation
    if not (isinstance(kind, type) and issubclass(kind, Federation)):
        raise InvalidInput(
            f"participants must name a subclass of turnout.training.Federation, but "
            f"{training.participants} is {require.shown(kind)}.",
            field="participants",
        )
    return kind(training, n_clients, seed, data=data)


def _federated(training: Training, n_clients: int, seed: int) -> FederatedData:
    """Return the data. The latest is kept in memory, so that selectors of one seed share it."""
    parts = (
        training.source,
        training.partition,
        n_clients,
        seed,
        training.hold_out,
        training.code,
    )
    try:
        return _kept(*parts)
    except TypeError:  # a user's source need not be hashable
        return federate(*parts)


_kept = lru_cache(maxsize=1)(federate)


def forget_data() -> None:
    """Release the data that is kept in memory for the next federation."""
    _kept.cache_clear()


def _columns(data: FederatedData, label_noise: float | None, seed: int) -> dict[str, Array]:
    columns: dict[str, Array] = {"num_samples": data.num_samples}
    if data.features is not None:
        columns["features"] = data.features
    if label_noise is not None and not (data.is_text or data.has_targets):
        columns["label_counts"] = label_counts(data, label_noise, seed)
    return columns


def label_counts(data: FederatedData, noise: float = 0.0, seed: int = 0) -> FloatArray:
    """Return (n, classes) how many examples of each label a client says it has.

    Args:
        data: The examples of all clients.
        noise: Scale of the Laplace noise that clients add to each count; counts stay >= 0.
        seed: Draws the noise.
    """
    counts = data.label_counts.astype(np.float64)
    if noise:
        counts += stream(seed, Purpose.LABELS).laplace(scale=noise, size=counts.shape)
    return np.maximum(counts, 0.0)


def _is_reference(trainer: Trainer) -> bool:
    return getattr(trainer, "how", "") == "reference"


def _possible(values: FloatArray) -> FloatArray:
    """Return reports with NaN in place of values that are not finite or too large."""
    return np.where(np.abs(values) <= LARGEST_REPORT, values, np.nan)


class KeptBuffers:
    """Lets clients train and evaluate with their own buffers, one client after the other.

    ``values`` are (n, buffers) those of each client; NaN for a client that has not trained yet,
    which uses those of the global model.

    Args:
        trainer: The trainer, with a model that changes its buffers.

    """

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self._n = trainer.n_buffers
        first = trainer.initial_weights()[-self._n :]
        self.values: Tensor = first.repeat(trainer.steps.size, 1).fill_(np.nan)

    def train(
        self, weights: Tensor, clients: IntArray, round: int, draws: IntArray | None = None
    ) -> Updates:
        """Let each client train from the global weights and its buffers, and keep the latter."""
        import torch

        each = [
            self._trainer.train(
                self._model(weights, client),
                np.array([client]),
                round,
                None if draws is None else draws[row : row + 1],
            )
            for row, client in enumerate(clients)
        ]
        local = torch.cat([updates.weights for updates in each])
        is_sound = torch.from_numpy(np.isfinite([updates.loss[0] for updates in each]))
        self.values[clients[is_sound.numpy()]] = local[is_sound.to(local.device), -self._n :]
        reports = ("num_examples", "loss", "loss_std", "loss_rms", "steps")
        joined = (np.concatenate([getattr(updates, name) for updates in each]) for name in reports)
        return Updates(local, *joined)

    def polled_loss(
        self, weights: Tensor, clients: IntArray, round: int, data: PollData
    ) -> FloatArray:
        """Return the loss of the weights with each client's buffers on its data."""
        each = [
            self._trainer.polled_loss(self._model(weights, client), np.array([client]), round, data)
            for client in clients
        ]
        return np.concatenate([np.zeros(0), *each])

    def test_clients(self, weights: Tensor, clients: IntArray | None = None) -> ClientScores:
        """Return loss and accuracy of the weights with each client's buffers on its examples."""
        each = [
            self._trainer.test_clients(self._model(weights, client), np.array([client]))
            for client in (range(len(self.values)) if clients is None else clients)
        ]
        loss, accuracy = (
            np.concatenate([np.zeros(0), *(getattr(scores, name) for scores in each)])
            for name in ("loss", "accuracy")
        )
        return ClientScores(loss, accuracy)

    def _model(self, weights: Tensor, client: int) -> Tensor:
        own = self.values[client]
        if own.isnan().any():
            return weights
        model = weights.clone()
        model[-self._n :] = own
        return model
