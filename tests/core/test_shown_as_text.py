"""What an object says of itself at a prompt and in a notebook."""

import turnout
from turnout.data import Digits, Shards, divide
from turnout.experiment import Experiment, run_experiment
from turnout.worlds import e3cs_world


def test_a_run_is_a_few_lines():
    run = turnout.simulate("random", e3cs_world(seed=1), cohort_size=20, n_rounds=50)
    assert repr(run).splitlines() == [
        "Run: 50 rounds, 20 of 100 clients",
        f"  success ratio {run.success_ratio:.4f}, 50 s virtual time",
    ]


def test_federated_data_is_a_few_lines():
    data = divide(Digits().load(0), Shards(2), 10, seed=0)
    lines = repr(data).splitlines()
    assert len(lines) == 3
    assert lines[0].startswith("FederatedData digits: 10 clients, ")
    assert "0 held out by clients" in lines[2]


def test_a_grid_is_a_few_lines(tmp_path):
    sizes = {"n_clients": 20, "cohort_size": 4, "n_rounds": 5, "seeds": 2}
    grid = run_experiment(Experiment(["random", "fedcs"], "demo", **sizes), tmp_path, n_jobs=1)
    lines = repr(grid).splitlines()
    assert lines[0] == "Results: 4 of 4 runs complete"
    assert lines[1] == "  demo: 5 rounds, 4 of 20 clients, 2 seeds"
    assert lines[2].startswith("    random: success 0.")
    assert lines[-1] == f"  in {tmp_path}"
