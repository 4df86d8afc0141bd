"""The selectors, one algorithm per file. A new file needs one import line here."""

from turnout.selectors.afl import AFL
from turnout.selectors.clustered import Clustered
from turnout.selectors.cpow_d import CPowD
from turnout.selectors.data_weighted import DataWeighted
from turnout.selectors.dirichlet import Dirichlet
from turnout.selectors.divfl import DivFL
from turnout.selectors.e3cs import E3CS
from turnout.selectors.fed_cbs import FedCBS
from turnout.selectors.fedcor import FedCor
from turnout.selectors.fedcs import FedCS
from turnout.selectors.guarded import Guarded
from turnout.selectors.hics_fl import HiCSFL
from turnout.selectors.k_linucb import KLinUCB
from turnout.selectors.mix import Mix
from turnout.selectors.nccb import NCCB
from turnout.selectors.ocs import OCS
from turnout.selectors.oort import Oort
from turnout.selectors.pace import Pace
from turnout.selectors.pow_d import PowD
from turnout.selectors.random import Random
from turnout.selectors.rbcs_f import RBCSF
from turnout.selectors.refl import REFL
from turnout.selectors.round_robin import RoundRobin
from turnout.selectors.rpow_d import RPowD
from turnout.selectors.tifl import TiFL
from turnout.selectors.ucb_cs import UCBCS

__all__ = [
    "AFL",
    "E3CS",
    "NCCB",
    "OCS",
    "RBCSF",
    "REFL",
    "UCBCS",
    "CPowD",
    "Clustered",
    "DataWeighted",
    "Dirichlet",
    "DivFL",
    "FedCBS",
    "FedCS",
    "FedCor",
    "Guarded",
    "HiCSFL",
    "KLinUCB",
    "Mix",
    "Oort",
    "Pace",
    "PowD",
    "RPowD",
    "Random",
    "RoundRobin",
    "TiFL",
]
