"""The peer of ``bench_serve.py``: the same ONNX file behind LitServe, JSON columns in, scores out, batches of its own.

In an environment with ``litserve`` and ``onnxruntime``: ``python litserve_peer.py DIR --port 8200``; then the same load
as for ``fastrec serve DIR --port 8100``:
``wrk -t1 -c64 -d10 -s post.lua http://127.0.0.1:8200/predict`` with a body of ``bench_serve.py bodies DIR``.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import litserve as ls
import numpy as np
import onnxruntime as ort


class Scores(ls.LitAPI):
    """One graph, the requests of a batch joined."""

    def __init__(self, folder: Path, **options) -> None:
        super().__init__(**options)
        self.folder = folder

    def setup(self, device) -> None:
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        self.session = ort.InferenceSession(str(self.folder / "model.onnx"), options)
        kinds = {i["name"]: i["type"] for i in json.loads((self.folder / "serving.json").read_text())["inputs"]}
        self.types = {n: object if k == "string" else np.dtype(k) for n, k in kinds.items()}

    def decode_request(self, request):
        return {n: np.array(request["columns"][n], t) for n, t in self.types.items()}

    def batch(self, inputs):
        self.sizes = [len(next(iter(i.values()))) for i in inputs]
        return {n: np.concatenate([i[n] for i in inputs]) for n in self.types}

    def predict(self, x):
        return self.session.run(None, x)[0]

    def unbatch(self, output):
        return np.split(output, np.cumsum(self.sizes)[:-1])

    def encode_response(self, output):
        return {"scores": output.tolist()}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--port", type=int, default=8200)
    parser.add_argument("--batch", type=int, default=64)
    args = parser.parse_args()
    api = Scores(args.folder, max_batch_size=args.batch, batch_timeout=0.002)
    ls.LitServer(api, workers_per_device=1, accelerator="cpu").run(
        port=args.port, host="127.0.0.1", generate_client_file=False
    )
