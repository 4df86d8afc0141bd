from __future__ import annotations

import os
import threading

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils import parametrizations

from tests.training.federations import federation
from turnout.training.engine import LEAST_SHARE, Stacked, StepRule, cut, spread, stack
from turnout.training.fast import is_noisy, why_not
from turnout.training.layers import ConvReluPool, Space, Unreadable, read_layer_plans
from turnout.training.local import batch_plan

PLANS = st.lists(
    st.tuples(st.integers(1, 60), st.integers(1, 9), st.sampled_from([None, 1, 7, 40])),
    min_size=1,
    max_size=12,
)


def plans_of(wanted):
    rng = np.random.default_rng(0)
    return [batch_plan(n, batch, steps, rng) for n, steps, batch in wanted]


@settings(derandomize=True, deadline=None)
@given(PLANS, st.integers(1, 5), st.integers(1, 4))
def test_tiles_hold_every_client_once_in_order_of_steps(wanted, limit, threads):
    plans = plans_of(wanted)
    tiles = cut(plans, limit, threads)
    assert sorted(np.concatenate(tiles).tolist()) == list(range(len(plans)))
    for tile in tiles:
        assert 1 <= tile.size <= limit
        steps = [plans[i].n_steps for i in tile]
        assert steps == sorted(steps, reverse=True)
        widths = [np.diff(plans[i].bounds).max() for i in tile]
        assert min(widths) >= LEAST_SHARE * max(widths)


def test_equal_work_is_shared_out_equally():
    plans = plans_of([(440, 11, 40)] * 20)
    assert [tile.size for tile in cut(plans, limit=100, threads=2)] == [10, 10]
    assert [tile.size for tile in cut(plans, limit=6, threads=2)] == [5, 5, 5, 5]
    assert [tile.size for tile in cut(plans[:3], limit=40, threads=8)] == [1, 1, 1]
    assert cut([], limit=5, threads=2) == []


def test_little_work_is_one_tile():
    plans = plans_of([(440, 11, 40)] * 20)
    assert [tile.size for tile in cut(plans, limit=320, threads=2)] == [20]
    assert [tile.size for tile in cut(plans, limit=319, threads=2)] == [10, 10]
    assert [tile.size for tile in cut(plans[:1], limit=1, threads=4)] == [1]
    plans[0] = plans_of([(440, 1, 440)])[0]
    assert [tile.size for tile in cut(plans, limit=1000, threads=2)] == [1, 10, 9]


def test_unequal_work_is_dealt_out_in_turns():
    plans = plans_of([(40, steps, 40) for steps in (1, 8, 3, 6, 5, 4)])
    tiles = cut(plans, limit=10, threads=2)
    assert [tile.tolist() for tile in tiles] == [[1, 4, 2], [3, 5, 0]]  # 8 + 5 + 3 and 6 + 4 + 1


@settings(derandomize=True, deadline=None)
@given(PLANS)
def test_a_tile_holds_the_mini_batches_of_its_clients(wanted):
    plans = sorted(plans_of(wanted), key=lambda plan: -plan.n_steps)
    first = 100 * np.arange(len(plans))
    tile = stack(plans, first)
    assert tile.counts.shape == tile.rows.shape
    for i, plan in enumerate(plans):
        for step in range(tile.n_steps):
            rows, counts = tile.rows[i, step], tile.counts[i, step]
            if step >= plan.n_steps:
                assert not counts.any()
                continue
            batch = first[i] + plan.order[plan.bounds[step] : plan.bounds[step + 1]]
            np.testing.assert_array_equal(rows[counts], batch)
            assert set(rows) == set(batch)  # what fills up is of the same mini-batch


RULES = [
    StepRule(0.1),
    StepRule(0.1, momentum=0.9),
    StepRule(0.1, proximal=0.5),
    StepRule(0.1, momentum=0.5, proximal=0.25, weight_decay=0.125),
]


@pytest.mark.parametrize("rule", RULES)
def test_rule_is_that_of_torch_with_the_proximal_pull(rule):
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(3, 4, generator=generator)
    left, right = (torch.randn(5, 2, *s, generator=generator) for s in ((3, 6), (6, 4)))
    stored, never_stored = (Stacked.copies(start, 2, rule) for _ in range(2))
    single = nn.Parameter(start.clone())
    optimizer = torch.optim.SGD(
        [single], lr=rule.lr, momentum=rule.momentum, weight_decay=rule.weight_decay
    )
    for a, b in zip(left, right, strict=True):
        stored.descend(a @ b)
        never_stored.descend_product(a, b)
        single.grad = (a @ b)[1] + rule.proximal * (single.detach() - start)
        optimizer.step()
    torch.testing.assert_close(stored.value[1], single.detach())
    torch.testing.assert_close(never_stored.value[1], single.detach())
    torch.testing.assert_close(never_stored.value, stored.value)


def test_only_the_first_clients_move():
    weights = Stacked.copies(torch.ones(2, 2), 3, StepRule(0.5, momentum=0.9, proximal=0.1))
    weights.first(2).descend(torch.ones(2, 2, 2))
    weights.first(1).descend_product(torch.ones(1, 2, 1), torch.ones(1, 1, 2))
    assert torch.equal(weights.value[2], torch.ones(2, 2))
    assert len({float(value[0, 0]) for value in weights.value}) == 3


@pytest.mark.parametrize(
    ("shape", "out", "kernel", "padding"),
    [((1, 12, 12), 2, 5, 0), ((3, 9, 7), 4, 3, 1), ((2, 8, 11), 3, 1, 0), ((2, 7, 7), 3, 7, 2)],
)
def test_convolution_is_that_of_torch(shape, out, kernel, padding):
    torch.manual_seed(0)
    n, lr = 6, 0.125
    conv = nn.Conv2d(shape[0], out, kernel, padding=padding)
    x = torch.randn(n, *shape, requires_grad=True)
    wanted = nn.functional.max_pool2d(torch.relu(conv(x)), 2)
    gradient = torch.randn_like(wanted)
    wanted.backward(gradient)

    weight, bias = (Stacked.copies(part.detach(), 2, StepRule(lr)) for part in conv.parameters())
    both = x.detach().permute(1, 2, 3, 0).expand(2, *shape, n).clone()
    space = Space(both.device)
    layer = ConvReluPool(both, space, weight, bias, is_first=False, padding=padding)
    layer.forward()
    got = layer.out.clone()
    its_gradient = gradient.permute(1, 2, 3, 0).expand_as(got).contiguous()
    below = layer.connect(its_gradient.clone())
    layer.backward()
    for i in range(2):
        torch.testing.assert_close(got[i].permute(3, 0, 1, 2), wanted.detach())
        torch.testing.assert_close(below[i].permute(3, 0, 1, 2), x.grad)
    for stacked, part in ((weight, conv.weight), (bias, conv.bias)):
        torch.testing.assert_close(stacked.value[1], part.detach() - lr * part.grad)


def hooked():
    module = nn.Sequential(nn.Linear(4, 2))
    module[0].register_forward_hook(lambda *_: None)
    return module


def frozen():
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    module[0].weight.requires_grad_(False)
    return module


def tied():
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    module[1].weight = module[0].weight
    return module


def twice():
    layer = nn.Linear(4, 4)
    return nn.Sequential(layer, nn.ReLU(), layer)


def weight_norm():
    return nn.Sequential(parametrizations.weight_norm(nn.Linear(4, 2)))


class Special(nn.Linear):
    def forward(self, x):
        return -super().forward(x)


def cnn(conv, pool):
    return nn.Sequential(conv, nn.ReLU(), pool, nn.Flatten(), nn.LazyLinear(2))


@pytest.mark.parametrize(
    ("module", "shape", "why"),
    [
        (hooked(), (4,), "Linear has hooks"),
        (frozen(), (4,), "frozen weights"),
        (tied(), (4,), "share weights"),
        (twice(), (4,), "share weights"),
        (weight_norm(), (4,), "ParametrizedLinear is not among"),
        (nn.Sequential(Special(4, 2)), (4,), "Special is not among"),
        (nn.Sequential(nn.Linear(4, 2)), (3, 4), r"shape \(3, 4\) is not among"),
        (nn.Sequential(nn.Linear(4, 2), nn.ReLU()), (4,), "end with a linear layer"),
        (nn.Sequential(nn.ReLU(), nn.Linear(4, 2)), (4,), "begin with weights"),
        (nn.Sequential(nn.Linear(4, 2), nn.Dropout(0.5)), (4,), "Dropout.* is not among"),
        (nn.Sequential(nn.Conv2d(1, 2, 3), nn.MaxPool2d(2)), (1, 8, 8), "Conv2d.* is not among"),
        (cnn(nn.Conv2d(1, 2, 2), nn.MaxPool2d(2)), (1, 8, 8), "Conv2d.* is not among"),
        (cnn(nn.Conv2d(1, 2, 3, stride=2), nn.MaxPool2d(2)), (1, 8, 8), "Conv2d.* is not among"),
        (cnn(nn.Conv2d(2, 2, 3, groups=2), nn.MaxPool2d(2)), (2, 8, 8), "Conv2d.* is not among"),
        (
            cnn(nn.Conv2d(1, 2, 3, padding=1, padding_mode="circular"), nn.MaxPool2d(2)),
            (1, 8, 8),
            "Conv2d.* is not among",
        ),
        (cnn(nn.Conv2d(1, 2, 3), nn.MaxPool2d(3)), (1, 8, 8), "Conv2d.* is not among"),
        (cnn(nn.Conv2d(1, 2, 3), nn.MaxPool2d(2, stride=1)), (1, 8, 8), "Conv2d.* is not among"),
        (
            cnn(nn.Conv2d(1, 2, 3), nn.MaxPool2d(2, ceil_mode=True)),
            (1, 8, 8),
            "Conv2d.* is not among",
        ),
    ],
)
def test_modules_that_may_mean_something_else_are_not_read(module, shape, why):
    module(torch.zeros(2, *shape))  # fills in what is lazy
    with pytest.raises(Unreadable, match=why):
        read_layer_plans(module, shape)


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_threads")
def test_threads_use_one_core_each_and_leave_the_rest_alone():
    answers = spread(lambda item: (item, torch.get_num_threads()), range(6), threads=3)
    assert answers == [(item, 1) for item in range(6)]
    assert torch.get_num_threads() == 2
    found = []
    other = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
    other.start()
    other.join()
    assert found == [2]


@pytest.mark.usefixtures("two_threads")
def test_a_single_item_uses_one_core_from_here():
    here = threading.get_ident()
    found = spread(lambda _: (torch.get_num_threads(), threading.get_ident()), [0], threads=3)
    assert found == [(1, here)]
    assert torch.get_num_threads() == 2


@pytest.mark.parametrize("items", [[1, 0], [0]])
@pytest.mark.usefixtures("two_threads")
def test_errors_in_threads_come_out(items):
    with pytest.raises(ZeroDivisionError):
        spread(lambda item: 1 // item, items, threads=3)
    assert torch.get_num_threads() == 2


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_process_has_threads_of_its_own():
    assert spread(abs, [-1], threads=2) == [1]
    child = os.fork()
    if child == 0:
        os._exit(spread(abs, [-7], threads=2)[0])
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 7


def test_noise_is_seen():
    data = federation(shape=(4,))
    some, none = (nn.Sequential(nn.Linear(4, 4), nn.Dropout(share)) for share in (0.1, 0.0))
    noise = torch.get_rng_state()
    assert is_noisy(some, data)
    assert not is_noisy(none, data)
    assert torch.equal(torch.get_rng_state(), noise)


class Unused(nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.unused = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        return self.used(x)


class Detached(nn.Module):
    """Under torch.func its gradient is another one than under autograd."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        answer = self.layer(x)
        return answer if torch._C._functorch.is_functorch_wrapped_tensor(answer) else 2.0 * answer


@pytest.mark.parametrize(
    ("module", "why"),
    [
        (nn.Sequential(nn.Linear(4, 4), nn.GELU()), ""),
        (Unused(), "RuntimeError: "),
        (Detached(), "torch.func gives other gradients than autograd"),
        (nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)), "RuntimeError: vmap"),
    ],
)
def test_modules_are_tried_under_torch_func(module, why):
    found = why_not(module, federation(shape=(4,)))
    assert found.startswith(why)
    assert bool(found) == bool(why)
