"""A Dask cluster by its name: that of a scheduler's address, or one of this machine's own processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastrec._core import limits
from fastrec._core.leftovers import working_folder
from fastrec._core.optional import require
from fastrec.errors import DataError

if TYPE_CHECKING:
    from distributed import Client

    from fastrec.table import Table

INSTALL = "pip install 'fastrec-tabular[scale]'"


@contextmanager
def dask_cluster(scheduler: str) -> Iterator[Client]:
    """Yield a client of a cluster; one of this machine's processes is closed at the end.

    Args:
        scheduler: ``tcp://host:port`` (or ``tls://…``), or ``local:N`` for N worker processes here.

    Raises:
        DataError: it is neither, or nothing answers there.
        MissingPackageError: ``distributed`` is not installed.
    """
    kind, _, rest = scheduler.partition(":")
    if not (kind == "local" and rest.isdecimal() and int(rest)) and kind not in ("tcp", "tls"):
        raise DataError(
            f"{scheduler!r} is no scheduler", remedy="Give its address (tcp://host:8786), or local:2 for two processes"
        )
    distributed = require("distributed", "Dask's distributed", INSTALL)
    require("dask.dataframe", "Dask", INSTALL)
    if kind == "local":
        options = {"n_workers": int(rest), "threads_per_worker": 1, "dashboard_address": ":0"}
        with distributed.LocalCluster(**options) as own, distributed.Client(own) as client:
            yield client
        return
    try:
        client = distributed.Client(scheduler, timeout="20s")
    except (OSError, ValueError) as error:
        raise DataError(
            f"no scheduler answers at {scheduler}", remedy="Check the address; start one with: dask scheduler"
        ) from error
    with client:
        yield client


@contextmanager
def tables_on(scheduler: str | None, beside: Path) -> Iterator[Callable[[Table | None], Any] | None]:
    """Return a function that partitions tables into files for the workers of a cluster; None without a scheduler.

    Args:
        scheduler: see ``dask_cluster``; None: none.
        beside: the folder, gone at the end, is made beside this path: workers must see it.
    """
    if scheduler is None:
        yield None
        return
    with dask_cluster(scheduler) as client:
        from fastrec.features._dask.split_table import splitter

        workers = len(client.scheduler_info(n_workers=-1)["workers"])
        if not workers:
            raise DataError(f"the cluster of {scheduler} has no workers", remedy="Start some: dask worker ADDRESS")
        above = beside.resolve().parent
        above.mkdir(parents=True, exist_ok=True)
        with working_folder(above / f"{beside.name}.rows") as folder:
            yield splitter(folder, limits.PARTS_A_WORKER * workers)
