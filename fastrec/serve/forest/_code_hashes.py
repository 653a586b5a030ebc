"""CatBoost's hashes of categories that are codes: the lower half of CityHash64 of a code's digits."""

from __future__ import annotations

import numpy as np

_K2, _K3, _MIX = (np.uint64(k) for k in (0x9AE16A3B2F90404F, 0xC949D7C7509E6557, 0x9DDFEA08EB382D69))


def code_hashes(n: int) -> np.ndarray:
    """Compute hashes of the codes 0 to n - 1, at most 10^8: int32 ``[n]``.

    Version 1.0 of CityHash (Pike and Alakuijala, https://github.com/google/cityhash), of texts of up to 8 bytes.
    """
    lengths = [(0, 10), *((10**i, 10 ** (i + 1)) for i in range(1, 8))]
    hashes = [_of_length(np.arange(first, min(end, n))) for first, end in lengths if first < n]
    return np.concatenate([np.zeros(0, np.uint64), *hashes]).astype(np.uint32).view(np.int32)


def _of_length(codes: np.ndarray) -> np.ndarray:
    """Compute CityHash64 of codes with the same number of digits: uint64."""
    length = len(str(codes[0]))
    digits = [np.uint64(ord("0")) + (codes // 10**i % 10).astype(np.uint64) for i in reversed(range(length))]
    if length < 4:
        y = digits[0] + (digits[length // 2] << np.uint64(8))
        z = np.uint64(length) + (digits[-1] << np.uint64(2))
        return _shifted(y * _K2 ^ z * _K3) * _K2
    head, tail = (sum(d << np.uint64(8 * i) for i, d in enumerate(part)) for part in (digits[:4], digits[-4:]))
    low = np.uint64(length) + (head << np.uint64(3))
    return _shifted((tail ^ _shifted((low ^ tail) * _MIX)) * _MIX) * _MIX


def _shifted(x: np.ndarray) -> np.ndarray:
    return x ^ (x >> np.uint64(47))
