"""Search vectors: fastrec's Index beside torch, faiss and usearch (where it is installed), exactly and approximately.

Vectors are clustered, queries are drawn as they are. ``rows`` are the queries, ``seconds`` what all of them take;
``recall`` is that of the 100 nearest beside exact search, ``promised`` what the index said of itself, ``build`` the
seconds that it took to build, ``build_cpu`` those of the processor.
"""

from __future__ import annotations

import argparse
import importlib.util
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from _timing import Record, Timing, command_line, cores, cpu_time, heading, record, show, use_threads, write
from rich.console import Console

from fastrec.retrieval import Index

K = 100
Found = tuple[Callable[[torch.Tensor], torch.Tensor], dict[str, Any]]


def clustered(count: int, clusters: int, spread: float, queries: int, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Vectors and queries round the same centres."""
    random = torch.Generator().manual_seed(0)
    centres = torch.randn(clusters, width, generator=random)

    def draw(n: int) -> torch.Tensor:
        noise = spread * torch.randn(n, width, generator=random)
        return noise.add_(centres[torch.randint(clusters, (n,), generator=random)])

    return draw(count), draw(queries)


def fastrec(vectors: torch.Tensor, kind: str) -> Found:
    """The index of ours."""
    index = Index(vectors, kind=kind, verbose=False)
    print(index.about, flush=True)
    return lambda q: index.search(q, K)[0], {"promised": index.recall, "kind": index.kind}


def by_torch(vectors: torch.Tensor) -> Found:
    """A product and topk, by blocks of queries."""
    return lambda q: torch.cat([torch.topk(part @ vectors.T, K, dim=1).indices for part in q.split(32)]), {}


def by_faiss(vectors: torch.Tensor, spec: str, probe: int) -> Found:
    """An index by faiss's own recipe."""
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
    """Its graph, by its own settings."""
    from usearch.index import Index as Graph

    graph = Graph(ndim=vectors.shape[1], metric="ip", dtype="f32")
    graph.add(torch.arange(len(vectors)).numpy(), vectors.numpy(), threads=torch.get_num_threads())
    threads = torch.get_num_threads()
    return lambda q: torch.from_numpy(graph.search(q.numpy(), K, threads=threads).keys.astype("int64")), {}


def measure(case: str, systems: dict[str, Callable[[], Found]], queries: dict[str, torch.Tensor]) -> list[Record]:
    """Build and search by each system; the first finds what the others are compared with."""
    found: dict[str, tuple[int, Timing, dict[str, Any]]] = {}
    expected = None
    for name, build in systems.items():
        started, began = time.perf_counter(), cpu_time()
        search, more = build()
        built, cost = time.perf_counter() - started, cpu_time() - began
        asked = queries["exact" if "exact" in name else "approximate"]
        search(asked[:8])
        wall, cpu = time.perf_counter(), cpu_time()
        places = search(asked)
        timing = Timing(time.perf_counter() - wall, cpu_time() - cpu)
        expected = places if expected is None else expected
        both = min(len(expected), len(places))
        hits = float((places[:both, :, None] == expected[:both, None, :]).any(2).double().mean())
        notes = f"recall {hits:.4f}, built in {built:.1f} s ({cost:.1f} CPU)"
        found[name] = len(asked), timing, {"recall": hits, "build": built, "build_cpu": cost, "notes": notes, **more}
        print(f"{case}, {name}: {len(asked) / timing.seconds:,.0f} queries/s, {notes}", flush=True)
    rows, own, _ = next(x for name, x in found.items() if name.startswith("fastrec"))
    made = []
    for name, (count, timing, more) in found.items():
        ours = Timing(own.seconds * count / rows, (own.cpu_seconds or 0.0) * count / rows)
        made.append(record(case, name, count, timing, ours, **more))
    return made


def main() -> None:
    """Run the systems, print the table, write the files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vectors", type=int, default=1_000_000, help="how many")
    parser.add_argument("--width", type=int, default=64, help="of a vector")
    parser.add_argument("--clusters", type=int, default=1_000, help="that vectors stand round")
    parser.add_argument("--spread", type=float, default=0.5, help="deviation within a cluster")
    parser.add_argument("--queries", type=int, default=4_000, help="by approximate search; exact search has a tenth")
    parser.add_argument("--threads", type=int, default=cores(), help="that every system may use (default: all cores)")
    parser.add_argument("--graphs", action="store_true", help="graphs too, which take minutes to build")
    parser.add_argument("--out", type=Path, default=Path("runs/bench/retrieval.json"), help="the file of results")
    options = parser.parse_args()
    use_threads(options.threads)
    console = Console(record=True, width=180)
    console.print(heading(command_line()), highlight=False)
    vectors, queries = clustered(options.vectors, options.clusters, options.spread, options.queries, options.width)
    asked = {"exact": queries[: max(1, len(queries) // 10)], "approximate": queries}
    lists = f"IVF{max(16, int(options.vectors**0.5))},PQ{options.width // 2}x4fs,RFlat"
    exact = {
        "fastrec Index exact": lambda: fastrec(vectors, "exact"),
        "torch exact": lambda: by_torch(vectors),
        "faiss Flat exact": lambda: by_faiss(vectors, "Flat", 0),
    }
    near = {
        "torch exact": exact["torch exact"],
        "fastrec Index": lambda: fastrec(vectors, "auto"),
        f"faiss {lists}, 16 probed": lambda: by_faiss(vectors, lists, 16),
    }
    if options.graphs:
        near["faiss HNSW16"] = lambda: by_faiss(vectors, "HNSW16", 0)
        if importlib.util.find_spec("usearch"):
            near["usearch"] = lambda: by_usearch(vectors)
    size = f"{options.vectors:,} × {options.width}"
    made = measure(f"exact, {size}", exact, asked) + measure(f"approximate, {size}", near, asked)
    show(console, made, title=f"The {K} nearest of {size} vectors in {options.clusters:,} clusters")
    write(options.out, made, console.export_text())
    print(f"written: {options.out} and {options.out.with_suffix('.txt')}")


if __name__ == "__main__":
    main()
