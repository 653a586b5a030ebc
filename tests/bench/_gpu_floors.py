"""What the machine itself reaches: bytes a second on the device and to it, products a second, kernels a second.

Every other figure of the GPU's benchmark is set beside a floor that is made of these: the seconds that its bytes take
at the measured speed, or its products at theirs, whichever is more.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from _gpu_trace import seconds_of
from _timing import Record, bare

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class Floors:
    """Measured speeds.

    Args:
        copy: bytes read and written a second by a copy on the device.
        to_device, to_host: bytes a second between pinned memory of the host and the device.
        flops: operations a second of a large product of matrices, by dtype.
        launch: seconds that one kernel of nothing takes when many follow one another.
    """

    copy: float
    to_device: float
    to_host: float
    flops: dict[str, float]
    launch: float

    @classmethod
    def of(cls, records: list[Record]) -> Floors | None:
        """The floors that some records hold; None where they hold none."""
        found = {r["system"]: r["per_second"] for r in records if r.get("part") == "floors" and "per_second" in r}
        if not {"copy on the device", "host to device", "device to host"} <= set(found):
            return None
        flops = {d: found[f"product, {d}"] for d in DTYPES if f"product, {d}" in found}
        launch = 1 / found["kernels"] if found.get("kernels") else 0.0
        return cls(found["copy on the device"], found["host to device"], found["device to host"], flops, launch)


def measure(device: torch.device, *, small: bool) -> Iterator[Record]:
    """One record for each speed."""
    size = (1 << 22) if small else (1 << 30)
    repeats = 3 if small else 20
    yield from _copies(device, size, repeats)
    yield from _products(device, 256 if small else 8_192, repeats)
    one, count = torch.zeros(1, device=device), 100 if small else 2_000
    seconds = seconds_of(lambda: one.add_(1), device, 3, inner=count)
    yield _record("kernels", 1, seconds, "kernels/s")


def _copies(device: torch.device, size: int, repeats: int) -> Iterator[Record]:
    a, b = (torch.zeros(size, dtype=torch.uint8, device=device) for _ in range(2))
    pinned = torch.zeros(size, dtype=torch.uint8, pin_memory=device.type == "cuda")
    yield _record("copy on the device", 2 * size, seconds_of(lambda: a.copy_(b), device, repeats), "bytes/s")
    there = seconds_of(lambda: a.copy_(pinned, non_blocking=True), device, repeats)
    yield _record("host to device", size, there, "bytes/s")
    back = seconds_of(lambda: pinned.copy_(a, non_blocking=True), device, repeats)
    yield _record("device to host", size, back, "bytes/s")


def _products(device: torch.device, n: int, repeats: int) -> Iterator[Record]:
    for name, dtype in DTYPES.items():
        if dtype == torch.float16 and device.type == "cpu":
            continue  # a CPU has no fast ones
        a, b = (torch.ones(n, n, dtype=dtype, device=device) for _ in range(2))
        seconds = seconds_of(lambda a=a, b=b: a @ b, device, repeats)
        yield _record(f"product, {name}", 2 * n**3, seconds, "FLOP/s")


def _record(system: str, count: int, seconds: float, unit: str) -> Record:
    rate = count / seconds
    shown = f"{rate / 1e9:,.1f} G{unit}" if rate > 1e9 else f"{rate:,.0f} {unit}"
    return bare("floors", system, count, seconds, per_second=rate, unit=unit, notes=shown)


def share(record: Record, floor: float | None, what: str) -> Record:
    """A record with its floor: the seconds below which it cannot be, and the share of that speed which is reached.

    Args:
        record: with ``seconds``.
        floor: seconds; None: not known.
        what: of what the floor is made.
    """
    if floor is None or not record["seconds"]:
        return record
    return {**record, "floor_s": floor, "floor_share": round(floor / record["seconds"], 4), "floor_of": what}
