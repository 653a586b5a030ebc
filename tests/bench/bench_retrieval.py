"""Search vectors: fastrec's Index beside torch, faiss and usearch (where it is installed), exactly and approximately.

Vectors are clustered, queries are drawn as they are. ``rows`` are the queries, ``seconds`` what all of them take;
``recall`` is that of the 100 nearest beside exact search, ``promised`` what the index said of itself, ``build`` the
seconds that it took to build, ``build_cpu`` those of the processor.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any

import torch
from _timing import Options, Record, Timing, record, run_cases, timed

from fastrec.retrieval import Index

K = 100
Found = tuple[Callable[[torch.Tensor], torch.Tensor], dict[str, Any]]


@cache
def clustered(count: int, clusters: int, spread: float, queries: int, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Vectors and queries round the same centres."""
    random = torch.Generator().manual_seed(0)
    centres = torch.randn(clusters, width, generator=random)

    def draw(n: int) -> torch.Tensor:
        noise = spread * torch.randn(n, width, generator=random)
        return noise.add_(centres[torch.randint(clusters, (n,), generator=random)])

    return draw(count), draw(queries)


def fastrec(kind: str, vectors: torch.Tensor) -> Found:
    index = Index(vectors, kind=kind, verbose=False)
    print(index.about, flush=True)
    return lambda q: index.search(q, K)[0], {"promised": index.recall, "kind": index.kind}


def by_torch(vectors: torch.Tensor) -> Found:
    return lambda q: torch.cat([torch.topk(part @ vectors.T, K, dim=1).indices for part in q.split(32)]), {}


def by_faiss(spec: str, probe: int, vectors: torch.Tensor) -> Found:
    import faiss

    faiss.omp_set_num_threads(torch.get_num_threads())
    index = faiss.index_factory(vectors.shape[1], spec, faiss.METRIC_INNER_PRODUCT)
    index.train(vectors.numpy())
    index.add(vectors.numpy())
    if hasattr(index, "k_factor"):
        index.k_factor = 8  # vectors compared exactly for one that is shown, as many as ours; 1 finds half of them
    if probe:
        faiss.extract_index_ivf(index).nprobe = probe
    return lambda q: torch.from_numpy(index.search(q.numpy(), K)[1]), {}


def by_usearch(vectors: torch.Tensor) -> Found:
    from usearch.index import Index as Graph

    graph, how = Graph(ndim=vectors.shape[1], metric="ip", dtype="f32"), {"threads": torch.get_num_threads()}
    graph.add(torch.arange(len(vectors)).numpy(), vectors.numpy(), **how)
    return lambda q: torch.from_numpy(graph.search(q.numpy(), K, **how).keys.astype("int64")), {}


def measure(o: Options, *, case: str) -> Iterator[Record]:
    """Build and search by each system; the first finds what the others are compared with."""
    lists = f"IVF{max(16, int(o.vectors**0.5))},PQ{o.width // 2}x4fs,RFlat"
    systems: dict[str, Callable[..., Found]] = {"torch exact": by_torch, "fastrec Index": partial(fastrec, "auto")}
    systems[f"faiss {lists}, 16 probed"] = partial(by_faiss, lists, 16)
    if case == "exact":
        systems = {"fastrec Index exact": partial(fastrec, "exact"), "torch exact": by_torch}
        systems["faiss Flat exact"] = partial(by_faiss, "Flat", 0)
    elif o.graphs:
        systems["faiss HNSW16"] = partial(by_faiss, "HNSW16", 0)
        if importlib.util.find_spec("usearch"):
            systems["usearch"] = by_usearch
    vectors, queries = clustered(o.vectors, o.clusters, o.spread, o.queries, o.width)
    found: dict[str, tuple[int, Timing, dict[str, Any]]] = {}
    expected = None
    for name, build in systems.items():
        (search, more), built, cost = timed(partial(build, vectors))
        asked = queries[: max(1, len(queries) // 10)] if "exact" in name else queries
        search(asked[:8])
        places, *seconds = timed(partial(search, asked))
        expected = places if expected is None else expected
        both = min(len(expected), len(places))
        hits = float((places[:both, :, None] == expected[:both, None, :]).any(2).double().mean())
        notes = f"recall {hits:.4f}, built in {built:.1f} s ({cost:.1f} CPU)"
        more |= {"recall": hits, "build": built, "build_cpu": cost, "notes": notes}
        found[name] = len(asked), Timing(*seconds), more
    rows, own, _ = next(x for name, x in found.items() if name.startswith("fastrec"))
    for name, (count, timing, more) in found.items():
        ours = Timing(own.seconds * count / rows, own.cpu_seconds * count / rows)
        yield record(f"{case}, {o.vectors:,} × {o.width}", name, count, timing, ours, **more)


if __name__ == "__main__":
    run_cases(
        __doc__,
        {case: partial(measure, case=case) for case in ("exact", "approximate")},
        "retrieval",
        vectors=(1_000_000, "how many"),
        width=(64, "of a vector"),
        clusters=(1_000, "that vectors stand round"),
        spread=(0.5, "deviation within a cluster"),
        queries=(4_000, "by approximate search; exact search has a tenth"),
        graphs=(False, "graphs too, which take minutes to build"),
    )
