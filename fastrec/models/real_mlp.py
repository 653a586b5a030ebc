"""RealMLP: a multi-layer perceptron whose every detail was chosen by benchmarks on tables (arXiv 2407.04491)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fastrec._core import limits
from fastrec.errors import DataError
from fastrec.models.embedding import CheckIds, refuse_ids, side_by_side
from fastrec.models.fields import FieldNet, InputOptions, dropouts, of_width, squash, training_rows


class OneHotTables(nn.Module):
    """One-hot encoding of columns of ids, without parameters.

    Id 0 (missing, unseen) is all zeros. A column of two values is one number, -1 or 1. Numbers are then scaled like
    ``RobustScale`` (arXiv 2407.04491, section 3), by the ``shares`` of each id in training rows (None: equal).
    """

    def __init__(
        self,
        rows: Sequence[int],
        columns: Sequence[int],
        names: Sequence[str],
        shares: Sequence[Tensor] | None = None,
        *,
        check_ids: CheckIds = "auto",
    ) -> None:
        super().__init__()
        self.check_ids = check_ids
        self.columns, self.names = list(columns), list(names)
        tables = [one_hot_table(n, None if shares is None else shares[i]) for i, n in enumerate(rows)]
        self.width = sum(t.shape[1] for t in tables)
        # One table for all columns, whose ids follow one another: a batch is one sum of parts that do not overlap.
        joined = torch.zeros(sum(rows), self.width)
        row = column = 0
        for table in tables:
            joined[row : row + len(table), column : column + table.shape[1]] = table
            row, column = row + len(table), column + table.shape[1]
        self.register_buffer("table", joined)
        sizes = torch.tensor(list(rows), dtype=torch.int64)
        self.register_buffer("_rows", sizes, persistent=False)
        self.register_buffer("_starts", sizes.cumsum(0) - sizes, persistent=False)

    def forward(self, x_cat: Tensor | None, n_columns: int) -> Tensor:
        """Return the numbers of a batch ``[b, width]`` of ids ``[b, n_columns]``."""
        if x_cat is None or x_cat.ndim != 2 or x_cat.shape[1] != n_columns:
            given = None if x_cat is None else list(x_cat.shape)
            raise DataError(f"ids of shape [b, {n_columns}] are needed, not {given}", remedy="Give every column of ids")
        ids = x_cat[:, self.columns].long()
        refuse_ids(ids, self._rows, self.names, self.check_ids)
        ids = ids + self._starts
        if torch.compiler.is_compiling() or torch.jit.is_tracing():  # a bag becomes a loop in exported graphs
            return self.table[ids].sum(1)
        return F.embedding_bag(ids, self.table, mode="sum")


def one_hot_table(rows: int, shares: Tensor | None = None) -> Tensor:
    """Return the numbers of each id of a column: ``[rows, numbers]``, float32."""
    plain = torch.zeros(rows, rows - 1) if rows != 3 else torch.tensor([[0.0], [-1.0], [1.0]])
    if rows != 3:
        plain[1:] = torch.eye(rows - 1)
    if shares is None:
        shares = torch.full((rows,), 1 / max(rows - 1, 1))
        shares[0] = 0.0
    shares = shares.double() / shares.double().sum().clamp(min=1e-300)
    columns = [_scaled(plain[:, i].double(), shares) for i in range(plain.shape[1])]
    return torch.stack(columns, 1).float() if columns else torch.zeros(rows, 0)


def _scaled(values: Tensor, shares: Tensor) -> Tensor:
    order = torch.argsort(values, stable=True)
    ranked, below = values[order], shares[order].cumsum(0)
    first, median, third = (ranked[int((below < q - 1e-9).sum().clamp(max=len(ranked) - 1))] for q in (0.25, 0.5, 0.75))
    there = values[shares > 0]
    reach = there.max() - there.min() if len(there) else values.new_zeros(())
    scale = 1 / (third - first) if third > first else 2 / reach if reach > 0 else values.new_zeros(())
    scaled = (values - median) * scale
    return scaled / (1 + (scaled / 3) ** 2).sqrt()


Act = Literal["selu", "mish"]

RATES = {"weights": 1.0, "biases": 0.1, "scale": 6.0, "numbers": 0.1, "activations": 0.1}  # times the rate
UNDECAYED = "biases"
_ACTS = {"selu": F.selu, "mish": F.mish}


class RealMLP(FieldNet):
    """A multi-layer perceptron with RealMLP's inputs, layers and first weights.

    Categories of up to ``max_one_hot`` values are one-hot encoded, others embedded; numbers are embedded by ``PBLD``.
    A diagonal layer scales every input; then come blocks of ``NTKLinear``, a parametric activation and dropout. The
    first training batch scales the weights: each neuron's outputs get standard deviation 1, and its bias is drawn from
    their range.

    ``NetModel(model=RealMLP)`` trains as the paper does: parts have their own rates (``rate_groups``), and numbers go
    through ``RobustScale``. In your own training use ``splitter=RealMLP.rate_groups`` for several rates.

    Args:
        emb_szs: ``(rows, ·)`` for each categorical column, in the order of the batch; the width is not used.
        act: ``'selu'`` (the paper's for classes) or ``'mish'`` (for amounts).
        frequencies: cosines per number.
        d_embedding: width of a number's vector, including the number.
        sigma: scale of the initial frequencies.
        max_one_hot: maximum of values of a one-hot column.
        emb_dim: width of embeddings.
        shares: for each categorical column the share of training rows with each id, ``[rows]``, which scales one-hot
            columns; ``rec_learner`` computes them; None: equal shares.
        n_cont, out_sz, layers, ps, y_range: see ``TabularNet``; one hidden layer or more.
        **inputs: options of the inputs, see ``FieldNet``; ``bn_cont`` is off by default.
    """

    def __init__(
        self,
        emb_szs: Sequence[tuple[int, int]],
        n_cont: int,
        out_sz: int,
        layers: Sequence[int] = (256, 256, 256),
        *,
        ps: float | Sequence[float] | None = 0.15,
        act: Act = "selu",
        frequencies: int = 16,
        d_embedding: int = 4,
        sigma: float = 0.1,
        max_one_hot: int = 9,
        emb_dim: int = 8,
        shares: Sequence[Tensor] | None = None,
        y_range: tuple[float, float] | None = None,
        **inputs: Unpack[InputOptions],
    ) -> None:
        if not layers or act not in _ACTS:
            raise DataError(f"RealMLP of {len(layers)} layers and {act!r}", remedy="Give layers; 'selu' or 'mish'")
        names = inputs.get("cat_names") or [str(i) for i in range(len(emb_szs))]
        one_hot = [i for i, (rows, _) in enumerate(emb_szs) if rows - 1 <= max_one_hot]
        embedded = [i for i in range(len(emb_szs)) if i not in one_hot]
        own = {**inputs, "cat_names": [names[i] for i in embedded], "bn_cont": False}
        # one-hot columns count as numbers here: the base refuses a net without any column
        super().__init__(of_width([emb_szs[i] for i in embedded], emb_dim), n_cont + len(one_hot), **own)
        self.n_cont, self.n_dense = n_cont, self.n_dense - len(one_hot)
        self.bn_cont = nn.BatchNorm1d(n_cont) if n_cont and inputs.get("bn_cont", False) else None
        if self.embeds is not None:
            self.embeds.reset_parameters(1.0)
        self.n_columns, self._embedded = len(emb_szs), embedded
        found = None if shares is None else [shares[i] for i in one_hot]
        cells = [emb_szs[i][0] for i in one_hot], one_hot, [names[i] for i in one_hot]
        self.one_hot = OneHotTables(*cells, found, check_ids=inputs.get("check_ids", "auto")) if one_hot else None
        self.numbers = PBLD(n_cont, frequencies, d_embedding, sigma) if n_cont else None
        n_in = self.n_emb + self.n_dense + (self.one_hot.width if self.one_hot is not None else 0)
        n_in += n_cont * (d_embedding - 1)
        self.scale = nn.Parameter(torch.ones(n_in))
        sizes = [n_in, *layers]
        blocks: list[nn.Module] = []
        for i, p in enumerate(dropouts(ps, len(layers))):
            blocks += [NTKLinear(sizes[i], sizes[i + 1]), ParametricAct(sizes[i + 1], act)]
            blocks += [nn.Dropout(p)] if p else []
        self.layers = nn.Sequential(*blocks, NTKLinear(sizes[-1], out_sz))
        self.squeeze = squash(y_range)
        self.register_buffer("begun", torch.zeros((), dtype=torch.bool))
        self._begun = False

    @classmethod
    def options_for(cls, dls: Any, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options from the data, for ``rec_learner``, except given ones: shares of categories."""
        names = list(dls.cat_names)
        if not names or "shares" in given:
            return {}
        cats, _, _ = training_rows(dls, 1_000_000)
        classes = dls.train_ds.classes
        counts = [torch.bincount(cats[:, i].long(), minlength=len(classes[n])) for i, n in enumerate(names)]
        return {"shares": [(c / c.sum()).float().cpu() for c in counts]}

    @staticmethod
    def rate_groups(net: nn.Module) -> list[list[nn.Parameter]]:
        """Split the parameters by the parts of ``RATES``, as a Learner's ``splitter``; a part may be empty."""
        parts: dict[str, list[nn.Parameter]] = {name: [] for name in RATES}
        for name, parameter in net.named_parameters():
            last = name.rpartition(".")[2]
            whole = "numbers" if name.startswith("numbers.") else "scale" if name == "scale" else None
            parts[whole or {"alpha": "activations", "bias": "biases"}.get(last, "weights")].append(parameter)
        return list(parts.values())

    def forward(self, x_cat: Tensor | None, x_cont: Tensor | None = None, *extras: Tensor) -> Tensor:
        """Return the outputs ``[b, out_sz]`` of a batch, see ``FieldNet``."""
        pieces = [] if self.one_hot is None else [self.one_hot(x_cat, self.n_columns)]
        if self.embeds is not None:
            own = x_cat[:, self._embedded] if self.one_hot is not None and self._embedded else x_cat
            pieces += self.embed_pieces(own, extras)
        pieces += self.dense_pieces(x_cont, extras)
        x = side_by_side(pieces) * self.scale
        if self.training and not self._begun and not torch.compiler.is_compiling():
            self._begin(x.detach())
        return self.squeeze(self.layers(x))

    def fetch_ahead(self, x_cat: Tensor | None, x_cont: Tensor | None = None, *extras: Tensor) -> None:
        """Fetch as ``FieldNet.fetch_ahead``; one-hot columns have no table."""
        super().fetch_ahead(None if x_cat is None else x_cat[:, self._embedded], x_cont, *extras)

    def count_rows(self, x_cat: Tensor) -> None:
        """Count as ``FieldNet.count_rows``, likewise."""
        super().count_rows(x_cat[:, self._embedded])

    def dense_pieces(self, x_cont: Tensor | None, extras: Sequence[Tensor] = ()) -> list[Tensor]:
        """Return the embedded numbers of a batch, and its vectors, as pieces ``[b, ·]``."""
        pieces = super().dense_pieces(x_cont, extras)
        return pieces if self.numbers is None else [self.numbers(pieces[0]), *pieces[1:]]

    def _begin(self, x: Tensor) -> None:
        """Initialize the weights by the first training rows, layer by layer; loaded weights stay."""
        self._begun = True
        if bool(self.begun):
            return
        self.begun.fill_(True)
        # in float32 under autocast too: the outputs' spread sets the size of the weights
        with torch.no_grad(), torch.autocast(x.device.type, enabled=False):
            x = x.float()
            for layer in self.layers:
                if isinstance(layer, NTKLinear):
                    layer.begin(x)
                if not isinstance(layer, nn.Dropout):
                    x = layer(x)


class NTKLinear(nn.Module):
    """A linear layer in the neural tangent parametrisation: ``W x / √n + b`` for ``n`` inputs.

    Weights begin as numbers of variance 1, so that a rate means the same for layers of any width
    (arXiv 1806.07572, section 2; arXiv 2407.04491, section 3).
    """

    def __init__(self, n_in: int, n_out: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(n_out, n_in))
        self.bias = nn.Parameter(torch.randn(n_out))
        self.gain = n_in**-0.5

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[b, n_in]`` to ``[b, n_out]``."""
        return F.linear(x * self.gain, self.weight, self.bias)

    def begin(self, x: Tensor) -> None:
        """Set weights and biases by a batch of inputs ``[b, n_in]``.

        Weights are divided by the standard deviation of their neuron's outputs; a bias is minus a randomly weighted
        mean of five rows' outputs (*he+5*, arXiv 1903.11482, section 4).
        """
        out = F.linear(x * self.gain, self.weight)
        if len(x) > 1:
            sd = out.std(0, correction=0)
            sd = torch.where(sd > 1e-6, sd, torch.ones_like(sd))  # of equal rows: weights as they were drawn
            self.weight.div_(sd[:, None])
            out = out / sd
        n_out = len(self.weight)
        rows = torch.randint(len(x), (limits.BIAS_ROWS, n_out), device=x.device)
        mix = torch.empty(limits.BIAS_ROWS, n_out, device=x.device).exponential_()
        self.bias.copy_(-(out.gather(0, rows) * mix / mix.sum(0)).sum(0))


class ParametricAct(nn.Module):
    """``(1 - α) x + α f(x)`` with an α for each neuron, from 1 (arXiv 2407.04491, section 3)."""

    def __init__(self, n: int, act: Act) -> None:
        super().__init__()
        self.act = act
        self.alpha = nn.Parameter(torch.ones(n))

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[b, n]`` to ``[b, n]``."""
        return x + self.alpha * (_ACTS[self.act](x) - x)


class PBLD(nn.Module):
    """Embedding of numbers: periodic, bias, linear, densenet (arXiv 2407.04491, section 3, after 2203.05556).

    ``(x, W₂ cos(2π w₁ x + b₁) + b₂)`` for each column; ``w₁`` starts normal of scale ``sigma``, ``b₁`` uniform from -π
    to π, ``W₂`` and ``b₂`` as in ``nn.Linear``.
    """

    def __init__(self, n: int, frequencies: int = 16, d_embedding: int = 4, sigma: float = 0.1) -> None:
        super().__init__()
        if d_embedding < 2 or frequencies < 1:
            raise DataError(f"vectors of {d_embedding} by {frequencies} cosines", remedy="Give 2 and 1, or more")
        limit = frequencies**-0.5
        self.frequency = nn.Parameter(sigma * torch.randn(n, frequencies))
        self.phase = nn.Parameter(torch.empty(n, frequencies).uniform_(-math.pi, math.pi))
        self.weight = nn.Parameter(torch.empty(n, frequencies, d_embedding - 1).uniform_(-limit, limit))
        self.shift = nn.Parameter(torch.empty(n, d_embedding - 1).uniform_(-limit, limit))
        self.register_buffer("turn", torch.tensor(2 * math.pi), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Embed numbers ``[b, columns]``: ``[b, columns · d_embedding]``, the columns' vectors side by side."""
        waves = torch.cos(self.turn * x[..., None] * self.frequency + self.phase)  # [b, columns, frequencies]
        vectors = torch.bmm(waves.transpose(0, 1), self.weight).transpose(0, 1) + self.shift
        return torch.cat([x[..., None], vectors.to(x.dtype)], -1).flatten(1)
