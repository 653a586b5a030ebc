"""The fits of weighted sums: least squares, logistic and multinomial, each with a ridge and weights of rows."""

from __future__ import annotations

import torch


def ridge_regression(
    x: torch.Tensor, y: torch.Tensor, w: torch.Tensor, ridge: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Fit least squares with a free constant; x and y are taken in units of the standard deviation of y.

    Args:
        w: float64 ``[n]``, weights of the rows.
        ridge: penalty on the squared coefficients.

    Returns:
        Coefficients ``[m]`` and the constant, a scalar.
    """
    total = w.sum()
    mean_x, mean_y = (w @ x) / total, (w @ y) / total
    x, y = x - mean_x, y - mean_y
    unit = (w @ y.square()) / total
    unit = torch.where(unit > 0, unit, 1.0)
    gram = (x * w[:, None]).T @ x / unit + ridge * torch.eye(x.shape[1], dtype=x.dtype)
    # The least-squares solver of a singular system takes the smallest coefficients: with no ridge, equal models share
    coefficients = torch.linalg.lstsq(gram, (x.T @ (w * y) / unit)[:, None], driver="gelsd").solution[:, 0]
    return coefficients, mean_y - mean_x @ coefficients


def logistic(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor, ridge: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Fit maximum likelihood of 0 and 1 with a free constant, by Newton's steps, halved if they go too far.

    Args:
        y: float64 ``[n]`` of 0 and 1.
        w: float64 ``[n]``, weights of the rows.
        ridge: penalty on the squared coefficients.

    Returns:
        Coefficients ``[m]`` and the constant, a scalar.
    """
    a = torch.cat([x, x.new_ones(len(x), 1)], 1)
    penalty = torch.full((a.shape[1],), 2 * ridge, dtype=a.dtype)
    penalty[-1] = 1e-9  # a constant that is free, but not endless where there is one class only
    coefficients = torch.zeros(a.shape[1], dtype=a.dtype)

    def loss(b: torch.Tensor) -> torch.Tensor:
        z = a @ b
        return w @ (torch.nn.functional.softplus(z) - y * z) + (penalty * b.square()).sum() / 2

    value = loss(coefficients)
    # Bounds the steps; they stop once they bring no gain.
    for _ in range(50):
        p = (a @ coefficients).sigmoid()
        gradient = a.T @ (w * (p - y)) + penalty * coefficients
        curvature = (a * (w * p * (1 - p))[:, None]).T @ a + torch.diag(penalty + 1e-9)
        step = torch.linalg.solve(curvature, gradient)
        size = 1.0
        while (tried := loss(coefficients - size * step)) > value and size > 1e-6:
            size /= 2
        if not tried < value:
            break  # no step brings a gain any more
        coefficients, value = coefficients - size * step, tried
        if float(step.abs().max()) < 1e-10:
            break
    return coefficients[:-1], coefficients[-1]


def pool(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor, ridge: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Fit maximum likelihood of classes by ``softmax(sum of coefficient m times x m, plus a constant a class)``.

    Args:
        x: float64 ``[n, m, k]``.
        w: float64 ``[n]``, weights of the rows.
        ridge: penalty on the squared coefficients and constants.

    Returns:
        Coefficients ``[m]`` and constants ``[k]``.
    """
    n, models, classes = x.shape
    weights = torch.full((models,), 1 / models, dtype=x.dtype, requires_grad=True)
    constant = torch.zeros(classes, dtype=x.dtype, requires_grad=True)
    search = torch.optim.LBFGS(
        [weights, constant], max_iter=200, tolerance_grad=1e-9, tolerance_change=1e-12, line_search_fn="strong_wolfe"
    )

    def loss() -> torch.Tensor:
        search.zero_grad()
        z = torch.einsum("nmk,m->nk", x, weights) + constant
        of_true = z.gather(1, y[:, None])[:, 0] - z.logsumexp(1)
        value = (ridge * (weights.square().sum() + constant.square().sum()) - w @ of_true) / n
        value.backward()
        return value

    search.step(loss)
    return weights.detach(), constant.detach()
