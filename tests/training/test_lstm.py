"""The LSTM without automatic differentiation against PyTorch's, gradients included."""

import pytest
import torch
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

from turnout.training.lstm import LstmLayer, Steps


@pytest.mark.parametrize(
    "lengths",
    [[5, 5, 5], [7, 1, 3, 3], [1], [1, 1, 1], [4, 9, 2]],
    ids=["equal", "unequal", "one word", "words", "unsorted"],
)
def test_states_and_gradients_are_those_of_pytorch(lengths):
    torch.manual_seed(0)
    theirs = torch.nn.LSTM(4, 6, 2, batch_first=True)
    weights = [weight.detach() for weight in theirs.parameters()]
    texts = torch.randn(len(lengths), max(lengths), 4)
    packed = pack_padded_sequence(texts, torch.tensor(lengths), True, enforce_sorted=False)
    words = packed.data.requires_grad_()
    states = theirs(PackedSequence(words, *packed[1:]))[0].data
    above = torch.randn_like(states)
    expected = torch.autograd.grad(states, [words, *theirs.parameters()], above)

    steps = Steps.of(packed.batch_sizes, words.device)
    layers = [LstmLayer(weights[:4]), LstmLayer(weights[4:])]
    ours = words.detach()
    for layer in layers:
        ours = layer.forward(ours, steps)
    torch.testing.assert_close(ours, states.detach())
    gradient, of_weights = above.clone(), []
    for layer in reversed(layers):
        gradient, own = layer.backward(gradient, steps)
        of_weights = own + of_weights
    for one, other in zip([gradient, *of_weights], expected, strict=True):
        torch.testing.assert_close(one, other)
