"""A net whose embedding tables were multiplied by its first layer: a lookup and a sum replace a wide product."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fastrec._core import limits
from fastrec.models import TabularNet
from fastrec.models.embedding import side_by_side


def folded(net: nn.Module) -> nn.Module:
    """Return a net, on the CPU, for scoring that gives the same outputs in fewer operations, or the net itself.

    The first layer of a ``TabularNet`` is linear in each column's vector, so ``table @ weights`` is computed once and a
    batch sums its rows: 1,024 rows of 20 columns with 1,900 numbers took 7 ms instead of 17.
    """
    first = net.layers[0][0] if isinstance(net, TabularNet) else None
    if not isinstance(first, nn.Linear) or net.embeds is None or not net.embeds.n_columns:
        return net
    slices = net.embeds.slices[: net.embeds.n_columns]
    room, columns = limits.FOLD_TABLE_BYTES, []
    for i in sorted(range(len(slices)), key=lambda i: -slices[i].width):  # the widest first while there is room
        growth = 4 * (slices[i].stop - slices[i].start) * (first.out_features - slices[i].width)
        # a table narrower than 8 is multiplied faster than a row as wide as the hidden layer is read
        if slices[i].width >= 8 and growth <= room:
            room -= max(growth, 0)
            columns.append(i)
    return _Folded(net, sorted(columns)).eval() if columns else net


class _Folded(nn.Module):
    """A ``TabularNet`` with tables as wide as its first layer for some columns."""

    def __init__(self, net: TabularNet, columns: list[int]) -> None:
        super().__init__()
        self.net, self.columns = net, columns
        first: nn.Linear = net.layers[0][0]
        weights = first.weight.detach().double()
        slices = net.embeds.slices[: net.embeds.n_columns]
        ends = torch.tensor([s.width for s in slices]).cumsum(0).tolist()
        kept = torch.ones(first.in_features, dtype=torch.bool)
        for i in columns:
            own, s = slice(ends[i] - slices[i].width, ends[i]), slices[i]
            kept[own] = False
            table = net.embeds.weights[s.group].detach()[s.start : s.stop].double() @ weights[:, own].T
            self.register_buffer(f"table{i}", table.to(first.weight.dtype))
        self.others = [i for i in range(len(slices)) if i not in columns]
        self.register_buffer("weight", first.weight.detach()[:, kept].clone())
        self.register_buffer("bias", torch.zeros(first.out_features) if first.bias is None else first.bias.detach())
        self.after = nn.Sequential(*list(net.layers[0])[1:], *list(net.layers)[1:])

    def forward(self, x_cat: Tensor, x_cont: Tensor | None = None) -> Tensor:
        net = self.net
        net.embeds.check(x_cat)
        pieces = [net.embeds.look_up(i, x_cat[:, i]) for i in self.others]
        pieces += net.dense_pieces(x_cont, ())
        hidden = self.bias
        if pieces:
            hidden = nn.functional.linear(side_by_side(pieces), self.weight, self.bias)
        for i in self.columns:
            hidden = hidden + nn.functional.embedding(x_cat[:, i], getattr(self, f"table{i}"))
        return self.after(hidden)
