"""Which metrics of an NVFlare client reach the selector."""

import math

import numpy as np

from turnout.live.nvflare.transport import plain_metrics


def test_numbers_and_lists_pass_and_the_rest_is_left_out():
    sent = {
        "loss": np.float32(0.5),
        "update_sketch": [1.0, -2.0],
        "array": np.array([1.0, 2.0]),
        "one": np.array([3.0]),
        "short": (4.0,),
        "text": "5",
        "nan": math.nan,
        "gap": [1.0, math.nan],
        "far": [1.0, 1e31],
        "matrix": np.zeros((2, 2)),
        "ragged": [[1.0], 2.0],
        "empty": [],
        "table": {"a": 1.0},
        7: 1.0,
    }
    assert plain_metrics(sent) == {
        "loss": 0.5,
        "update_sketch": [1.0, -2.0],
        "array": [1.0, 2.0],
        "one": 3.0,
        "short": [4.0],
    }
    assert plain_metrics(None) == {}
