import re
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

import turnout
from turnout.core.notebook import lines_with_curves
from turnout.data import Digits, Shards, divide
from turnout.experiment import Experiment, run_experiment
from turnout.worlds import e3cs_world


def curves_of(html):
    """The points of every curve, by name."""
    picture = ElementTree.fromstring(re.search("<svg.*</svg>", html)[0])
    return {
        line.find("title").text: np.array(
            [point.split(",") for point in line.get("points").split()], dtype=float
        )
        for line in picture.iter("polyline")
    }


def test_curves_fill_the_picture_and_leave_out_what_is_unknown():
    values = np.array([0.0, np.nan, 5.0, 10.0])
    curves = curves_of(lines_with_curves("a", {"<b>": values, "flat": np.full(4, 10.0)}))
    assert curves["<b>"].shape == (3, 2)
    assert curves["<b>"][0].tolist() == [3.0, 61.0]  # the lowest value is at the bottom
    assert curves["<b>"][-1].tolist() == [277.0, 3.0]
    assert (curves["flat"][:, 1] == 3.0).all()
    assert len(curves_of(lines_with_curves("a", {"long": np.arange(1e5)}))["long"]) == 200


@pytest.mark.parametrize("curves", [{}, {"none": np.zeros(0)}, {"unknown": np.full(3, np.nan)}])
def test_without_a_curve_there_is_only_text(curves):
    assert lines_with_curves("a < b", curves) == "<pre>a &lt; b</pre>"


def test_a_run_is_a_few_lines():
    run = turnout.simulate("random", e3cs_world(seed=1), cohort_size=20, n_rounds=50)
    assert repr(run).splitlines() == [
        "Run: 50 rounds, 20 of 100 clients",
        f"  success ratio {run.success_ratio:.4f}, 50 s virtual time",
    ]
    assert list(curves_of(run._repr_html_())) == ["success so far"]


def test_federated_data_is_a_few_lines():
    data = divide(Digits().load(0), Shards(2), 10, seed=0)
    lines = repr(data).splitlines()
    assert len(lines) == 3
    assert lines[0].startswith("FederatedData digits: 10 clients, ")
    assert "0 held out by clients" in lines[2]
    assert len(curves_of(data._repr_html_())["examples of each client"]) == 10


def test_a_grid_is_a_few_lines(tmp_path):
    sizes = {"n_clients": 20, "cohort_size": 4, "n_rounds": 5, "seeds": 2}
    grid = run_experiment(Experiment(["random", "fedcs"], "demo", **sizes), tmp_path, n_jobs=1)
    lines = repr(grid).splitlines()
    assert lines[0] == "Results: 4 of 4 runs complete"
    assert lines[1] == "  demo: 5 rounds, 4 of 20 clients, 2 seeds"
    assert lines[2].startswith("    random: success 0.")
    assert lines[-1] == f"  in {tmp_path}"
    assert list(curves_of(grid._repr_html_())) == [
        "random, success so far",
        "fedcs, success so far",
    ]
