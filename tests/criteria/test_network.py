"""Which layers are seen: shapes, token axes, shared modules, modules that never run, and how taps reduce them."""

import pytest
import torch
from torch import nn
from worlds import World, small_net

from hardcase.criteria.network import (
    Layer,
    LayerTap,
    Selection,
    activated,
    channel_means,
    join_taps,
    select,
    trace_layers,
)
from hardcase.errors import HardcaseError
from hardcase.methods.neurons import FixedRange
from hardcase.models.subject import Subject

X = torch.rand(3, 1, 12, 12)


class Patches(nn.Module):
    """A small transformer: tokens first or rows first, attention whose inner projection never runs as a module."""

    def __init__(self, batch_first=True):
        super().__init__()
        self.batch_first = batch_first
        self.embed = nn.Linear(16, 8)
        self.block = nn.TransformerEncoderLayer(8, 2, 12, batch_first=batch_first, dropout=0.0)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        tokens = self.embed(
            nn.functional.unfold(x, 4, stride=4).transpose(1, 2)
        )  # rows, 9 tokens, 8
        if not self.batch_first:
            return self.head(self.block(tokens.transpose(0, 1)).mean(0))
        return self.head(self.block(tokens).mean(1))


class Windows(nn.Module):
    """Cuts every image into nine windows along the row axis, as windowed attention does."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(16, 5)
        self.head = nn.Linear(5, 3)

    def forward(self, x):
        windows = nn.functional.unfold(x, 4, stride=4).transpose(1, 2).reshape(-1, 16)
        return self.head(self.inner(windows).reshape(len(x), 9, 5).mean(1))


class Repeated(nn.Module):
    """One dense layer that runs three times, a layer that never runs, and the same module under two names."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(144, 6)
        self.again = nn.Linear(6, 6)
        self.alias = self.again
        self.unused = nn.Linear(4, 4)
        self.head = nn.Linear(6, 3)

    def forward(self, x):
        x = self.first(x.flatten(1))
        for _ in range(2):
            x = torch.tanh(self.again(x))
        return self.head(self.alias(x))


def test_order_kinds_and_shapes():
    graph = trace_layers(Subject(small_net()), X)
    assert [(layer.kind, layer.shape) for layer in graph.layers][:4] == [
        ("conv", (4, 12, 12)),
        ("activation", (4, 12, 12)),
        ("pool", (4, 6, 6)),
        ("plumbing", (144,)),
    ]
    assert [layer.units for layer in graph.of_kind("linear")] == [6, 5, 3]


def test_a_survey_leaves_no_hooks_and_no_other_trace():
    subject = Subject(small_net())
    before = torch.get_rng_state()
    trace_layers(subject, X)
    assert not any(module._forward_hooks for module in subject.modules())
    assert torch.equal(before, torch.get_rng_state())


def test_repeated_and_unused_modules():
    subject = Subject(Repeated())
    graph = trace_layers(subject, X)
    assert [layer.name for layer in graph.layers] == [
        "first",
        "again",
        "again#2",
        "again#3",
        "head",
    ]
    selection = select(graph, "again#2+head", "unit")
    answer = subject(X, selection.taps)
    again, head = selection.read(answer.activations)
    first = subject.net.first(X.flatten(1))
    torch.testing.assert_close(again, subject.net.again(torch.tanh(subject.net.again(first))))
    torch.testing.assert_close(head, answer.logits)


@pytest.mark.parametrize("batch_first", [True, False])
def test_tokens(batch_first):
    subject = Subject(Patches(batch_first))
    layers = {layer.name: layer for layer in trace_layers(subject, X).layers}
    assert "block.self_attn.out_proj" not in layers, "it takes part without being called"
    wide = layers["block.linear1"]
    assert (wide.shape, wide.channels, wide.units) == ((9, 12), 12, 108)
    assert wide.rows == (0 if batch_first else 1)
    assert layers["block.norm2"].channels == 8
    unit, channel = (Selection((wide,), mode) for mode in ("unit", "channel"))
    whole, means = (
        unit.read(subject(X, unit.taps).activations)[0],
        channel.read(subject(X, channel.taps).activations)[0],
    )
    torch.testing.assert_close(means, whole.reshape(3, 9, 12).mean(1))
    alone = unit.read(subject(X[1:2], unit.taps).activations)[0]
    torch.testing.assert_close(alone, whole[1:2])


def test_windows_along_the_rows():
    subject = Subject(Windows())
    layer = trace_layers(subject, X).layers[0]
    assert (layer.shape, layer.rows, layer.channels) == ((9, 5), -9, 5)
    selection = Selection((layer,), "channel")
    means = selection.read(subject(X, selection.taps).activations)[0]
    torch.testing.assert_close(subject.net.head(means), subject(X).logits)


def test_in_place_activations_do_not_reach_what_was_tapped():
    world = World()
    for mode in ("unit", "channel"):
        selection = select(world.graph, "conv-linear", mode)
        values = torch.cat(selection.read(world.subject(X, selection.taps).activations), 1)
        assert bool((values < 0).any()), "values before the activation must show"
        conv = (
            world.subject.net[0](X).flatten(1)
            if mode == "unit"
            else world.subject.net[0](X).mean((2, 3))
        )
        torch.testing.assert_close(values[:, : conv.shape[1]], conv)


def test_layers_with_their_activation():
    graph = trace_layers(Subject(small_net()), X)
    assert [layer.name for layer in activated(graph)] == ["1", "2", "5", "7", "8"]
    assert select(graph, "activated-softmax", "channel").units == 4 + 4 + 6 + 5 + 3 + 3


@pytest.mark.parametrize(("net", "count"), [("lenet1", 52), ("lenet4", 148), ("lenet5", 268)])
def test_neuron_counts_of_the_lenets(net, count):
    from hardcase.models import zoo

    subject = Subject(zoo.build_classifier(net, channels=1, size=28, classes=10))
    graph = trace_layers(subject, torch.rand(1, 1, 28, 28))
    assert select(graph, "activated-softmax", "channel").units == count
    assert select(graph, "activated", "channel").units == count - 10


def test_a_richer_tap_serves_all_readers():
    layer = Layer("c", "conv", (3, 4, 5), 0)
    output = torch.randn(2, 3, 4, 5)
    means, ranged, whole = (LayerTap(layer, kept) for kept in ("means", "means and range", "whole"))
    assert join_taps([{"c": means}, {"c": ranged}])["c"] == ranged
    assert join_taps([{"c": whole}, {"c": means}])["c"] == whole
    assert join_taps([{"c": means}, {"c": torch.sum}])["c"] is torch.clone
    plain, scaled = Selection((layer,)), Selection((layer,), order="scale-mean")
    for tap in (means, ranged, whole, torch.clone):
        torch.testing.assert_close(plain.read({"c": tap(output)})[0], output.mean((2, 3)))
    for tap in (ranged, whole, torch.clone):
        ((low, high),) = scaled.ranges({"c": tap(output)})
        torch.testing.assert_close(low.squeeze(1), output.flatten(1).amin(1))
        torch.testing.assert_close(high.squeeze(1), output.flatten(1).amax(1))


def test_a_poorer_tap_is_refused():
    layer = Layer("c", "conv", (3, 4, 5), 0)
    with pytest.raises(HardcaseError, match="60 units in unit mode"):
        Selection((layer,), "unit").read({"c": LayerTap(layer, "means")(torch.randn(2, 3, 4, 5))})


def test_unknown_layers_are_named():
    graph = trace_layers(Subject(small_net()), X)
    with pytest.raises(HardcaseError, match="no layer 'conv9'"):
        select(graph, "0+conv9", "unit")


def test_a_mean_in_two_steps_is_torchs_and_only_means_are_pushed():
    layer = Layer("conv", "conv", (3, 5, 7), 0)
    values = torch.rand(4, 3, 5, 7, generator=torch.Generator().manual_seed(0)).requires_grad_()
    assert torch.equal(channel_means(layer, values), values.mean((2, 3)))
    kept = FixedRange(layer)(values)
    assert torch.equal(kept, LayerTap(layer, "means and range")(values))
    (gradient,) = torch.autograd.grad(kept.sum(), values)
    assert torch.equal(gradient, torch.full_like(values, 1 / 35))
