"""Constants of ``apply`` that an exported graph must not round."""

from __future__ import annotations

import torch


def float64(value: float) -> torch.Tensor:
    """Return a number as float64 ``[]`` on the host, which works with tensors on any device.

    Written as a Python float it gives the same bits here, but ONNX would hold it as a float32.
    """
    return torch.tensor(value, dtype=torch.float64)
