"""The way in for users: asks for what the server needs, which fastrec itself does not."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fastrec._core.optional import require
from fastrec.serve.server.service import EventState, Limits
from fastrec.serve.server.versions import Canary

if TYPE_CHECKING:
    from starlette.applications import Starlette

__all__ = ["make_app"]


def make_app(
    export: str | Path,
    *,
    events: EventState | None = None,
    limits: Limits | None = None,
    token: str | None = None,
    canary: Canary | None = None,
) -> Starlette:
    """Make an application for one export, registry, recommender or run; it is loaded and warm on return.

    Any ASGI server runs it: ``uvicorn.run(make_app("export"))``. ``fastrec serve`` does, and stops and reloads it.

    Args:
        export: what ``fastrec export`` wrote; a registry: its current version answers, and what is promoted takes over
            within a second, without a request lost; or what ``Recommender.save`` wrote, or the run directory of a
            recipe for next items, which ``/v1/recommend`` answers for.
        events: what makes the export's columns from events, a ``fastrec.serve.online.Online``; None: nothing does.
        limits: how much it takes on; None: the defaults of ``Limits``.
        token: what a client must send as ``Authorization: Bearer …``, except to ask whether the server is alive; None:
            everyone is answered, and only SIGHUP reloads.
        canary: a version of the registry that answers a share of the requests; None: none does.

    Returns:
        A Starlette application; ``app.state.service`` holds the export.

    Raises:
        MissingFileError: there is no export.
        UnreadableFileError: the files are not of one export, or are damaged.
        MissingPackageError: onnxruntime, starlette or orjson is not installed.
    """
    for module in ("onnxruntime", "starlette", "orjson"):
        require(module, module, "pip install 'fastrec-tabular[serve]'")
    from fastrec.serve.server.app import build_app

    return build_app(export, events=events, limits=limits, token=token, canary=canary)
