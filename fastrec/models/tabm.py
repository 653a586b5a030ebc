"""Nets with a loss of their own: TabM, many perceptrons in one (arXiv 2410.24210), and ModernNCA, nearest rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Unpack

import numpy as np
import torch
import torch.nn.functional as F
from fastai import losses as fastai_losses
from torch import Tensor, nn

from fastrec._core import limits
from fastrec.errors import DataError
from fastrec.losses import BCE
from fastrec.models.embedding import side_by_side
from fastrec.models.fields import Activation, FieldNet, InputOptions, activation, dropouts, squash, training_rows
from fastrec.models.real_mlp import PBLD

By = Literal["quantile", "tree"]


class PiecewiseLinear(nn.Module):
    """Piecewise-linear embedding of numbers.

    A number is encoded as 1 for the bins below it, a share for its own bin and 0 for those above; the first and last
    bin are open-ended (section 3.2.1 of arXiv 2203.05556). Each column has a linear layer on this encoding. With
    ``straight`` a linear function of the number is added, and the encoding's layer starts at zero (arXiv 2410.24210,
    appendix).

    Args:
        bins: for each column its increasing edges, float ``[bins + 1]``, as of ``bins_of``.
        d_embedding: width of each column's vector.
        activation: end with a ReLU.
        straight: add a linear function of the number.
    """

    def __init__(
        self, bins: Sequence[Tensor], d_embedding: int = 16, *, activation: bool = False, straight: bool = True
    ) -> None:
        super().__init__()
        bins = [torch.as_tensor(b, dtype=torch.float32) for b in bins]
        if not len(bins) or d_embedding < 1:
            raise DataError(f"{len(bins)} columns as vectors of {d_embedding}", remedy="Give 1 of each, or more")
        for i, edges in enumerate(bins):
            if edges.ndim != 1 or len(edges) < 2 or not edges.isfinite().all() or (edges[1:] <= edges[:-1]).any():
                remedy = "Give two edges or more, finite and increasing, as bins_of does"
                raise DataError(f"the bin edges of continuous column {i} are {edges.tolist()}", remedy=remedy)
        self.n_columns, self.d_embedding, self.activation = len(bins), d_embedding, activation
        steps = max(len(b) - 1 for b in bins)
        for name, fill in (("left", 0.0), ("scale", 0.0), ("low", 0.0), ("high", 1.0)):
            self.register_buffer(name, torch.full((len(bins), steps), fill))
        for i, edges in enumerate(bins):
            n = len(edges) - 1
            self.left[i, :n], self.scale[i, :n] = edges[:-1], 1 / (edges[1:] - edges[:-1])
            self.low[i, 0], self.high[i, n - 1] = -torch.inf, torch.inf
        self.weight = nn.Parameter(torch.zeros(len(bins), steps, d_embedding))
        self.bias = nn.Parameter(torch.zeros(len(bins), d_embedding))
        self.slope = nn.Parameter(torch.zeros(len(bins), d_embedding)) if straight else None
        self.reset_parameters()

    @property
    def embedding_dim(self) -> int:
        """Width of what ``forward`` returns."""
        return self.n_columns * self.d_embedding

    def reset_parameters(self) -> None:
        """Draw the weights uniformly: the straight part's, or without one each column's layer's."""
        with torch.no_grad():
            self.weight.zero_()
            if self.slope is not None:
                limit = self.d_embedding**-0.5
                self.slope.uniform_(-limit, limit)
                self.bias.uniform_(-limit, limit)
                return
            for i, n in enumerate((self.scale > 0).sum(1).tolist()):
                self.weight[i, :n].uniform_(-(n**-0.5), n**-0.5)
                self.bias[i].uniform_(-(n**-0.5), n**-0.5)

    def encode(self, x: Tensor) -> Tensor:
        """Encode numbers ``[b, columns]`` by bins: ``[b, columns, bins]``, 0 beyond a column's own bins."""
        # from the bin's edge first: a product with large numbers would leave no digits for the difference
        return torch.clamp((x[..., None] - self.left) * self.scale, self.low, self.high)

    def forward(self, x: Tensor) -> Tensor:
        """Embed numbers ``[b, columns]``: ``[b, columns · d_embedding]``, the columns' vectors side by side."""
        out = torch.bmm(self.encode(x).transpose(0, 1), self.weight).transpose(0, 1) + self.bias
        if self.slope is not None:
            out = torch.addcmul(out, x[..., None], self.slope)
        return (out.relu() if self.activation else out).flatten(1)


def bins_of(
    data: Any,
    n_bins: int = 48,
    *,
    by: By = "quantile",
    y: Tensor | None = None,
    names: Sequence[str] | None = None,
    max_rows: int | None = limits.BIN_ROWS,
    min_leaf: int = 64,
) -> list[Tensor]:
    """Compute bin edges of every continuous column from training rows.

    Args:
        data: dataloaders (their training rows), or numbers ``[n, columns]``.
        n_bins: maximum of bins per column.
        by: edges at equal shares of the rows (``'quantile'``), or at the splits of a decision tree on this column
            (``'tree'``).
        y: targets ``[n]`` for ``'tree'`` (whole numbers are classes); None: those of the dataloaders.
        names: the columns' names, for messages; None: those of the dataloaders.
        max_rows: size of a random sample of rows; None: all.
        min_leaf: minimum of rows per bin, for ``'tree'``.

    Returns:
        Increasing edges per column, float32 ``[bins + 1]``; a column of one value gets one bin around it.

    Raises:
        DataError: a column holds no finite number; settings out of range; a tree without a target of one column.
    """
    if n_bins < 1 or min_leaf < 1 or by not in ("quantile", "tree"):
        raise DataError(f"n_bins={n_bins}, min_leaf={min_leaf}, by={by!r}", remedy="From 1 on; 'quantile' or 'tree'")
    if hasattr(data, "train_ds"):
        names = list(data.train_ds.cont_names) if names is None else names
        _, x, own = training_rows(data, max_rows)
        y = own if y is None else y
    else:
        x = torch.as_tensor(data)
        if max_rows is not None and len(x) > max_rows:
            rows = torch.from_numpy(np.sort(np.random.default_rng(0).choice(len(x), max_rows, replace=False)))
            x, y = x[rows], None if y is None else y[rows]
    values = x.detach().cpu().numpy()
    target = _one_target(y, len(values)) if by == "tree" else None
    names = [str(i) for i in range(values.shape[1])] if names is None else list(names)
    return [_edges(x, n_bins, target=target, min_leaf=min_leaf, name=n) for x, n in zip(values.T, names, strict=False)]


def _one_target(y: Tensor | None, n: int) -> np.ndarray:
    y = None if y is None else torch.as_tensor(y)
    if y is None or y.numel() != n:
        shape = None if y is None else list(y.shape)
        raise DataError(f"bins by a tree need one target for each of {n} rows, not {shape}", remedy="Give y [n]")
    return y.detach().cpu().reshape(-1).numpy()


def _edges(x: np.ndarray, n_bins: int, *, target: np.ndarray | None, min_leaf: int, name: str) -> Tensor:
    known = np.isfinite(x)
    if not known.any():
        raise DataError("no finite number to make bins of", column=name, remedy="Leave the column out")
    # missing and infinite values belong to no bin
    x, target = (x, target) if known.all() else (x[known], None if target is None else target[known])
    if target is None:
        inner = np.quantile(x, np.linspace(0, 1, n_bins + 1)[1:-1])
    else:
        from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

        kind = DecisionTreeRegressor if np.issubdtype(target.dtype, np.floating) else DecisionTreeClassifier
        tree = kind(max_leaf_nodes=max(n_bins, 2), min_samples_leaf=min_leaf, random_state=0)
        splits = tree.fit(x[:, None], target).tree_
        inner = splits.threshold[splits.children_left >= 0] if n_bins > 1 else np.empty(0)
    edges = np.unique(np.concatenate([[x.min()], inner, [x.max()]]).astype(np.float32))
    if len(edges) == 1:  # wide enough to differ from the value in float32
        reach = max(0.5, float(np.spacing(np.abs(edges[0]))))
        edges = np.array([edges[0] - reach, edges[0] + reach], dtype=np.float32)
    return torch.from_numpy(edges)


Combine = Literal["mean", "sigmoid", "softmax"]

_SMOOTHED = (fastai_losses.LabelSmoothingCrossEntropy, fastai_losses.LabelSmoothingCrossEntropyFlat)
_SOFTMAX = (fastai_losses.CrossEntropyLossFlat, fastai_losses.FocalLossFlat, *_SMOOTHED, nn.CrossEntropyLoss)
_SIGMOID = (BCE, fastai_losses.BCEWithLogitsLossFlat, nn.BCEWithLogitsLoss)
_SIZES = ((16, 32, 8), (128, 256, 64), (4, 16, 4))  # members, layers, embedding: least, most, in steps of
# means over rows: one call for all members at once gives the mean over the members as well
_BY_ROW = (*_SOFTMAX, *_SIGMOID, fastai_losses.BaseLoss, nn.MSELoss, nn.L1Loss, nn.SmoothL1Loss, nn.HuberLoss)


class TabM(FieldNet):
    """``k`` multi-layer perceptrons over the same inputs, trained separately and averaged in prediction.

    The members share embeddings and matrices. In the mini form each member scales the inputs (by random signs at first)
    and has its own output layer; in the full form it also scales every layer's inputs and outputs and has its own
    biases (section 3 of arXiv 2410.24210).

    In training ``forward`` returns every member's outputs ``[b, k, out_sz]``, and the loss must be
    ``MeanOverMembers(loss)``: ``rec_learner`` makes it; with a stock Learner write
    ``Learner(dls, net, loss_func=net.wrap_loss(CrossEntropyLossFlat()))``. In evaluation it returns the score
    ``[b, out_sz]`` of the members' mean prediction.

    Args:
        emb_szs, n_cont, out_sz, layers, ps, act_cls: see ``TabularNet``; one hidden layer or more.
        k: number of members; ``rec_learner`` takes fewer, and smaller layers and vectors, for more than 20 numbers.
        variant: ``'mini'`` or ``'full'``.
        bins: bin edges of each continuous column (``bins_of``; ``rec_learner`` computes them), or a
            ``PiecewiseLinear``; None: numbers are not embedded.
        d_embedding: width of each number's vector, if there are bins.
        y_range: ``(low, high)`` of a sigmoid on each member's outputs; None: no sigmoid.
        combine: average outputs (``'mean'``), or probabilities (``'sigmoid'``, ``'softmax'``); None: as the loss given
            to ``wrap_loss`` needs.
        **inputs: options of the inputs, see ``FieldNet``; ``bn_cont`` is off by default.
    """

    def __init__(
        self,
        emb_szs: Sequence[tuple[int, int]],
        n_cont: int,
        out_sz: int,
        layers: Sequence[int] = (256, 256),
        *,
        k: int = 32,
        variant: Literal["mini", "full"] = "mini",
        bins: PiecewiseLinear | Sequence[Tensor] | None = None,
        d_embedding: int = 16,
        ps: float | Sequence[float] | None = 0.1,
        y_range: tuple[float, float] | None = None,
        act_cls: Activation = nn.ReLU,
        combine: Combine | None = None,
        **inputs: Unpack[InputOptions],
    ) -> None:
        super().__init__(emb_szs, n_cont, **{"bn_cont": False, **inputs})
        if not layers or k < 1:
            raise DataError(f"TabM of {k} members and {len(layers)} layers", remedy="Give one of each, or more")
        if variant not in ("mini", "full") or combine not in (None, "mean", "sigmoid", "softmax"):
            remedy = "variant is 'mini' or 'full'; combine 'mean', 'sigmoid', 'softmax' or None"
            raise DataError(f"variant={variant!r}, combine={combine!r}", remedy=remedy)
        if self.embeds is not None:
            self.embeds.reset_parameters(limits.TABM_EMB_STD)
        self.k, self.out_sz, self.combine = k, out_sz, combine
        self.numbers = None
        if bins is not None and n_cont:
            self.numbers = bins if isinstance(bins, PiecewiseLinear) else PiecewiseLinear(bins, d_embedding)
            if self.numbers.n_columns != n_cont:
                problem = f"bins of {self.numbers.n_columns} columns for {n_cont} continuous columns"
                raise DataError(problem, remedy="Give one set of each")
        n_numbers = self.numbers.embedding_dim if self.numbers is not None else n_cont
        sizes = [self.n_emb + n_numbers + self.n_dense - n_cont, *layers]
        blocks: list[nn.Module] = []
        for i, p in enumerate(dropouts(ps, len(layers))):
            first, full = i == 0, variant == "full"
            linear = (
                EnsembleLinear(sizes[i], sizes[i + 1], k, signs=first, outputs=full)
                if first or full
                else nn.Linear(sizes[i], sizes[i + 1])
            )
            blocks += [linear, activation(act_cls), *([nn.Dropout(p)] if p else [])]
        self.layers = nn.Sequential(*blocks)
        self.heads = MemberHeads(sizes[-1], out_sz, k)
        self.squeeze = squash(y_range)

    @classmethod
    def options_for(cls, dls: Any, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options from the data, for ``rec_learner``, except given ones: bins and, for many numbers, sizes.

        The defaults are the paper's, for up to 20 numbers; from some 80 on there are 16 members, layers of 128 and 16
        bins in 4 numbers each.
        """
        n = len(dls.cont_names)
        share = min(1.0, limits.TABM_NARROW / max(n, 1))
        options: dict[str, Any] = {}
        if share < 1:
            k, width, d = (max(low, int(full * share) // step * step) for low, full, step in _SIZES)
            options = {"k": k, "layers": (width, width), "d_embedding": d}
        options = {name: value for name, value in options.items() if name not in given}
        if n and "bins" not in given:
            options["bins"] = bins_of(dls, max(16, int(48 * share)))
        return options

    def wrap_loss(self, loss: Any) -> MeanOverMembers:
        """Return the mean of the members' losses; the loss sets ``combine`` if it is None."""
        own = loss.loss if isinstance(loss, MeanOverMembers) else loss
        self.combine = self.combine or combine_of(own)
        return MeanOverMembers(own)

    def forward(self, x_cat: Tensor | None, x_cont: Tensor | None = None, *extras: Tensor) -> Tensor:
        """Return the outputs of a batch, see ``FieldNet``: ``[b, k, out_sz]`` in training, else ``[b, out_sz]``."""
        out = self.members(self.all_inputs(x_cat, x_cont, extras))
        return out if self.training else self._mean(out)

    def dense_pieces(self, x_cont: Tensor | None, extras: Sequence[Tensor] = ()) -> list[Tensor]:
        """Return the numbers of a batch, embedded if there are bins, and its vectors, as pieces ``[b, ·]``."""
        pieces = super().dense_pieces(x_cont, extras)
        return pieces if self.numbers is None else [self.numbers(pieces[0]), *pieces[1:]]

    def members(self, x: Tensor) -> Tensor:
        """Return every member's outputs ``[b, k, out_sz]``, for embedded inputs ``[b, ·]``."""
        return self.squeeze(self.heads(self.layers(x)))

    def _mean(self, out: Tensor) -> Tensor:
        # as logarithms of sums of probabilities, which would be 0 or 1 in float32
        if self.combine == "softmax":
            return torch.logsumexp(out.float().log_softmax(-1), 1)  # a constant less: softmax takes no notice
        if self.combine == "sigmoid":
            out = out.float()
            return torch.logsumexp(F.logsigmoid(out), 1) - torch.logsumexp(F.logsigmoid(-out), 1)
        return out.mean(1)


class EnsembleLinear(nn.Module):
    """One matrix for all members, around which each member scales inputs, and outputs if asked for.

    For member i: ``y_i = (x_i ⊙ r_i) W (⊙ s_i) + b_i``; without ``outputs`` there is no ``s`` and one bias for all.
    With ``signs`` the inputs' scales begin as random signs, else at 1.
    """

    def __init__(self, n_in: int, n_out: int, k: int, *, signs: bool, outputs: bool) -> None:
        super().__init__()
        plain = nn.Linear(n_in, n_out)
        self.weight = plain.weight
        self.r = nn.Parameter(torch.randint(0, 2, (k, n_in)).float() * 2 - 1 if signs else torch.ones(k, n_in))
        self.s = nn.Parameter(torch.ones(k, n_out)) if outputs else None
        bias = plain.bias.detach()
        self.bias = nn.Parameter(bias.expand(k, -1).clone() if outputs else bias.clone())

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[b, n_in]``, the same for all members, or ``[b, k, n_in]`` to ``[b, k, n_out]``."""
        # Of many rows it is the matrix that is scaled: [b, k, n_in] is never made. A graph, for batches of any size,
        # has no choice.
        traced = torch.compiler.is_compiling() or torch.jit.is_tracing()
        if x.ndim == 2 and (traced or len(x) >= len(self.weight)):
            out = F.linear(x, (self.weight[None] * self.r[:, None]).flatten(0, 1)).unflatten(1, (len(self.r), -1))
        else:
            out = F.linear((x[:, None] if x.ndim == 2 else x) * self.r, self.weight)
        return out + self.bias if self.s is None else torch.addcmul(self.bias, out, self.s)


class MemberHeads(nn.Module):
    """A linear layer for each member."""

    def __init__(self, n_in: int, n_out: int, k: int) -> None:
        super().__init__()
        limit = n_in**-0.5  # as nn.Linear draws its weights
        self.weight = nn.Parameter(torch.empty(k, n_in, n_out).uniform_(-limit, limit))
        self.bias = nn.Parameter(torch.empty(k, n_out).uniform_(-limit, limit))

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[b, k, n_in]`` to ``[b, k, n_out]``."""
        return torch.bmm(x.transpose(0, 1), self.weight).transpose(0, 1) + self.bias


def combine_of(loss: Any) -> Combine | None:
    """Return how predictions are averaged for a loss; None: as they are."""
    found = "softmax" if isinstance(loss, _SOFTMAX) else "sigmoid" if isinstance(loss, _SIGMOID) else None
    return getattr(loss, "combine", found)


class ModernNCA(FieldNet):
    """The mean target of the nearest training rows, where a net learns what is near.

    A row's prediction is the mean of the training rows' targets, weighted by ``softmax(-distance)`` of their vectors.
    So a training row is predicted from itself, too; and quantiles are not learned. A saved or exported net holds the
    training rows.

    In training ``forward`` returns the vectors ``[b, width]`` of a batch, and the loss must be ``net.wrap_loss(loss)``,
    which predicts a row from all others of its batch: ``rec_learner`` makes it. In evaluation it returns scores
    ``[b, out_sz]``.

    Args:
        emb_szs, n_cont, out_sz: see ``TabularNet``.
        known: the training rows: ids ``[n, categorical columns]``, numbers ``[n, n_cont]`` and targets ``[n]`` or
            ``[n, k]``; ``rec_learner`` takes them from the data, of a stream into memory.
        width: length of a row's vector.
        blocks: residual blocks of two layers and batch norm.
        ps: dropout in each block.
        d_embedding: width of each number's vector (see ``PBLD``).
        combine: how targets become scores: means (``'mean'``), or the logits of a mean of labels (``'sigmoid'``) or of
            classes (``'softmax'``); None: as the loss given to ``wrap_loss`` needs.
        **inputs: options of the inputs, see ``FieldNet``; ``bn_cont`` is off by default. It takes no lists and vectors.

    Source: Ye, Yin, Zhan, Chao 2025, "Revisiting Nearest Neighbor for Tabular Data", arXiv 2407.03257; there candidates
    are drawn from all training rows, here they are the batch.
    """

    def __init__(
        self,
        emb_szs: Sequence[tuple[int, int]],
        n_cont: int,
        out_sz: int,
        *,
        known: Sequence[Tensor],
        width: int = 128,
        blocks: int = 1,
        ps: float = 0.1,
        d_embedding: int = 8,
        combine: Combine | None = None,
        **inputs: Unpack[InputOptions],
    ) -> None:
        super().__init__(emb_szs, n_cont, **{"bn_cont": False, **inputs})
        if width < 1 or blocks < 1 or combine not in (None, "mean", "sigmoid", "softmax"):
            remedy = "Give 1 and 1, or more, and 'mean', 'sigmoid', 'softmax' or None"
            raise DataError(f"ModernNCA of width {width}, {blocks} blocks and combine={combine!r}", remedy=remedy)
        if self.embeds is not None:
            self.embeds.reset_parameters(1.0)
        self.out_sz, self.combine, self.weighted = out_sz, combine, False
        if [t.shape[1:] for t in known[:2]] != [(len(emb_szs),), (n_cont,)] or len({len(t) for t in known}) != 1:
            remedy = f"Give ids [n, {len(emb_szs)}], numbers [n, {n_cont}] and targets [n] or [n, k]"
            raise DataError(f"known holds {[list(t.shape) for t in known]}", remedy=remedy)
        for name, values in zip(("known_cat", "known_cont", "known_y"), known, strict=True):
            self.register_buffer(name, values.detach().clone() if name != "known_cont" else values.detach().float())
        self._others: tuple[Any, Tensor] | None = None  # the training rows' vectors, and the weights that made them
        self.numbers = PBLD(n_cont, d_embedding=d_embedding) if n_cont else None
        self.first = nn.Linear(self.n_emb + n_cont * d_embedding, width)
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.BatchNorm1d(width),
                nn.Linear(width, 2 * width),
                nn.ReLU(),
                nn.Dropout(ps),
                nn.Linear(2 * width, width),
            )
            for _ in range(blocks)
        )

    @classmethod
    def options_for(cls, dls: Any, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options from the data, for ``rec_learner``, except given ones: the training rows."""
        if "known" in given:
            return {}
        found = training_rows(dls)
        if found[2] is None:
            raise DataError("there are no targets to predict from", remedy="Give y_names")
        return {"known": [t.cpu() for t in found]}

    def wrap_loss(self, loss: Any) -> MeanOfNeighbours:
        """Return the loss of a batch that predicts its own rows; the loss sets ``combine`` if it is None."""
        own = loss.loss if isinstance(loss, MeanOverMembers) else loss
        self.combine = self.combine or combine_of(own) or ("mean" if isinstance(own, _BY_ROW) else None)
        if self.combine is None:
            remedy = "Give the model combine='mean', 'sigmoid' or 'softmax'"
            raise DataError(f"ModernNCA does not know what a {type(own).__name__} compares", remedy=remedy)
        self.weighted = getattr(own, "weighted", False)
        return MeanOfNeighbours(own, self)

    def forward(self, x_cat: Tensor | None, x_cont: Tensor | None = None) -> Tensor:
        """Return the vectors ``[b, width]`` of a batch in training, else its scores ``[b, out_sz]``."""
        found = self.vectors(x_cat, x_cont)
        if self.training:
            return found
        # A graph is exported for any number of rows, whole.
        if type(found) is not Tensor or torch.is_grad_enabled():
            return self.scores(found, self.vectors(self.known_cat, self.known_cont), self.known_y)
        made_by = found.dtype, [(t.data_ptr(), t._version) for t in (*self.parameters(), *self.buffers())]
        if self._others is None or self._others[0] != made_by:
            self._others = made_by, self.vectors(self.known_cat, self.known_cont)
        parts = found.split(max(1, limits.NEIGHBOUR_PAIRS // len(self.known_y)))
        return torch.cat([self.scores(part, self._others[1], self.known_y) for part in parts])

    def vectors(self, x_cat: Tensor | None, x_cont: Tensor | None = None) -> Tensor:
        """Return the rows' vectors ``[b, width]``."""
        numbers = self.dense_pieces(x_cont)
        x = self.first(side_by_side([*self.embed_pieces(x_cat), *(map(self.numbers, numbers) if self.numbers else [])]))
        for block in self.blocks:
            x = x + block(x)
        return x

    def scores(self, rows: Tensor, others: Tensor, y: Tensor, *, own: bool = False) -> Tensor:
        """Predict rows ``[b, width]`` from others ``[n, width]`` with targets ``[n]`` or ``[n, k]``: ``[b, out_sz]``.

        ``own``: the others are the rows themselves, and a row does not count for its own prediction.
        """
        y = y if y.ndim > 1 else y[:, None]
        if self.combine == "softmax":
            values = F.one_hot(y[:, 0].long(), self.out_sz).float()
        elif y.shape[1] < self.out_sz:
            raise DataError(f"{self.out_sz} outputs and {y.shape[1]} targets", remedy="Give a target for each output")
        else:
            values = y[:, : self.out_sz].float()
        # Not in 16 bits under autocast: a distance is a small difference of large numbers.
        with torch.autocast(others.device.type, enabled=False):
            rows, others = rows.float(), others.float()
            squares = (rows * rows).sum(1)[:, None] + (others * others).sum(1)[None] - 2 * rows @ others.T
            distance = squares.clamp(min=1e-9).sqrt()
            if own:
                distance = distance + 1e9 * torch.eye(len(rows), device=rows.device)
            if self.weighted:
                distance = distance - y[:, -1].float().clamp(min=1e-12).log()
            share = torch.softmax(-distance, 1)
            if self.combine not in ("sigmoid", "softmax"):
                return share @ values
            score = (share @ values + 1e-7).log()
            return score if self.combine == "softmax" else score - (share @ (1 - values) + 1e-7).log()


class MeanOverMembers:
    """The mean of the members' losses, for outputs ``[b, k, out_sz]``; for ``[b, out_sz]`` the loss itself.

    Other attributes (``activation``, ``decodes``, ``n_out`` …) are the given loss's.

    Args:
        loss: a loss of ``[b, out_sz]`` and targets. If your own loss is a mean over rows, set ``by_row = True``: it is
            then called once for all members.
    """

    def __init__(self, loss: Any) -> None:
        self.loss = loss

    def __call__(self, pred: Tensor, *targets: Tensor, **options: Any) -> Tensor:
        """Return the loss of ``[b, k, out_sz]``, a scalar; of ``[b, out_sz]`` what the given loss returns."""
        if pred.ndim != 3:
            return self.loss(pred, *targets, **options)
        k = pred.shape[1]
        # one call for all members costs less than k, but is the mean of means only for means over rows
        if isinstance(self.loss, _BY_ROW) or getattr(self.loss, "by_row", False):
            return self.loss(pred.flatten(0, 1), *(t.repeat_interleave(k, 0) for t in targets), **options)
        return torch.stack([self.loss(pred[:, i], *targets, **options) for i in range(k)]).mean()

    @property
    def reduction(self) -> Any:
        """The loss's reduction."""
        return self.loss.reduction

    @reduction.setter
    def reduction(self, value: Any) -> None:
        self.loss.reduction = value

    def __getattr__(self, name: str) -> Any:
        if name == "loss" or name.startswith("__"):  # not there yet while it is unpickled
            raise AttributeError(name)
        return getattr(self.loss, name)


class MeanOfNeighbours(MeanOverMembers):
    """The loss of a ``ModernNCA``: in training each row of the batch is predicted from the others.

    Other attributes are the given loss's.

    Args:
        loss: a loss of ``[b, out_sz]`` and targets.
        net: the net whose vectors it is given.
    """

    def __init__(self, loss: Any, net: ModernNCA) -> None:
        super().__init__(loss)
        self.net = net

    def __call__(self, pred: Tensor, *targets: Tensor, **options: Any) -> Tensor:
        """Return the loss of vectors ``[b, width]`` in training, of scores ``[b, out_sz]`` in evaluation."""
        if self.net.training:
            vectors, y = pred.as_subclass(Tensor), [t.as_subclass(Tensor).reshape(len(pred), -1) for t in targets]
            pred = self.net.scores(vectors, vectors, torch.cat(y, 1), own=True)
        return self.loss(pred, *targets, **options)
