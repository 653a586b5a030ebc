"""Lists, arrays and frames that a test gives to a metric are taken to the device under test."""

import sys
from collections.abc import Iterator

import pytest
import torch

from fastrec._core.device import on_host, resolve_device
from fastrec.metrics import ranking


@pytest.fixture(autouse=True)
def on_the_device(host_only: None) -> Iterator[None]:
    """Columns as tensors of the device, for every module that reads them."""
    device, read = resolve_device(), ranking.plain_tensor

    def moved(x: object, name: str) -> torch.Tensor:
        return read(x, name).to(device)

    with pytest.MonkeyPatch.context() as patch:
        readers = [m for n, m in sys.modules.items() if n.startswith("fastrec.") and hasattr(m, "plain_tensor")]
        for module in [] if on_host(device) else readers:
            patch.setattr(module, "plain_tensor", moved)
        yield
