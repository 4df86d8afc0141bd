"""Federated training of real models (extra ``torch``); recipes import without it.

>>> from turnout.training import Logistic, Training
>>> Training(model=Logistic()).model
Logistic()
"""

from turnout.training.aggregate import Aggregation, InverseProbability, KeepGlobal, MeanReturned
from turnout.training.base import ClientScores, LocalAlgorithm, ModelScores, Trainer, Updates
from turnout.training.federation import Federation
from turnout.training.local import LocalWork, PerClient
from turnout.training.models import (
    CifarCnn,
    Custom,
    EmnistCnn,
    FashionCnn,
    Logistic,
    Mlp,
    Model,
    Ready,
    StackedLstm,
)
from turnout.training.participation import LastUpdates, OnlineWeights, RunningRates
from turnout.training.recipe import Training
from turnout.training.server import FedAdam, FedYogi, ServerMomentum, ServerOptimizer, TakeMean

__all__ = [
    "Aggregation",
    "CifarCnn",
    "ClientScores",
    "Custom",
    "EmnistCnn",
    "FashionCnn",
    "FedAdam",
    "FedYogi",
    "Federation",
    "InverseProbability",
    "KeepGlobal",
    "LastUpdates",
    "LocalAlgorithm",
    "LocalWork",
    "Logistic",
    "MeanReturned",
    "Mlp",
    "Model",
    "ModelScores",
    "OnlineWeights",
    "PerClient",
    "Ready",
    "RunningRates",
    "ServerMomentum",
    "ServerOptimizer",
    "StackedLstm",
    "TakeMean",
    "Trainer",
    "Training",
    "Updates",
]
