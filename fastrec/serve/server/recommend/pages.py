"""What a server that recommends says about itself."""

from __future__ import annotations

import json
from html import escape
from typing import Any

from fastrec._version import __version__
from fastrec.serve.server.bodies import ARROW, JSON
from fastrec.serve.server.call import TIMEOUT
from fastrec.serve.server.pages import ERRORS, STYLE
from fastrec.serve.server.recommend.asked import RecommendSpec

__all__ = ["describe", "example", "html"]


def example(spec: RecommendSpec) -> dict[str, Any]:
    """Make up a body."""
    return {"items": ["a", "b"] if spec.type == "string" else [1, 2], "k": 5}


def describe(spec: RecommendSpec) -> dict[str, Any]:
    """Describe all addresses in OpenAPI 3.1."""
    kind = {"type": "string" if spec.type == "string" else "integer"}
    items = {"type": "array", "items": kind, "description": "The session's items so far, the last one last."}
    known = {n: {"description": says} for n, says in spec.context.items()}
    context = {"type": "object", "properties": known, "additionalProperties": False}
    session = {"type": "object", "required": ["items"], "properties": {"items": items, "context": context}}
    k = {"type": "integer", "minimum": 1, "default": spec.k}
    one = {**session, "additionalProperties": False, "properties": {**session["properties"], "k": k}}
    several = {
        "type": "object",
        "required": ["sessions"],
        "additionalProperties": False,
        "properties": {"sessions": {"type": "array", "items": {**session, "additionalProperties": False}}, "k": k},
    }
    best = {"type": "object", "properties": {"ids": {"type": "array", "items": kind}, "scores": {"type": "array"}}}
    given = {"oneOf": [best, {"type": "object", "properties": {"sessions": {"type": "array", "items": best}}}]}
    post = {
        "summary": "The best items for a session, or for several.",
        "parameters": [
            {"name": TIMEOUT, "in": "header", "schema": {"type": "integer", "minimum": 1}},
            {"name": "k", "in": "query", "schema": k},
        ],
        "requestBody": {
            "required": True,
            "content": {JSON: {"schema": {"oneOf": [one, several]}, "example": example(spec)}, ARROW: {}},
        },
        "responses": {
            "200": {"description": "Done.", "content": {JSON: {"schema": given}}},
            **{status: {"description": text} for status, text in ERRORS.items()},
        },
    }
    done = {"200": {"description": "Done."}}
    paths: dict[str, Any] = {
        "/v1/recommend": {"post": post},
        "/v1/reload": {"post": {"summary": "Load the model anew; needs the token.", "responses": done}},
    }
    for path, says in {
        "/health": "Whether the process answers.",
        "/ready": "Whether requests should be sent here.",
        "/metrics": "Counts and durations for Prometheus.",
    }.items():
        paths[path] = {"get": {"summary": says, "responses": done}}
    about = {"title": spec.name, "version": spec.version[:12], "description": f"Served by fastrec {__version__}."}
    return {"openapi": "3.1.0", "info": about, "paths": paths}


def html(spec: RecommendSpec, took: str) -> str:
    """Render the page for people."""
    addresses = "".join(
        f"<tr><td>{method.upper()}<td>{escape(path)}<td>{escape(said['summary'])}"
        for path, methods in describe(spec)["paths"].items()
        for method, said in methods.items()
    )
    context = "".join(f"<tr><td>{escape(n)}<td>{escape(says)}" for n, says in spec.context.items())
    names = f"<h2>Context</h2><table><tr><th>name<th>what it is{context}</table>" if context else ""
    body = escape(json.dumps(example(spec), ensure_ascii=False))
    return f"""<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(spec.name)}</title>
<style>{STYLE}</style>
<h1>{escape(spec.name)}</h1><p>{spec.items:,} items, version {escape(spec.version[:12])}, fastrec {__version__}.
<a href="openapi.json">OpenAPI</a></p>
<h2>Addresses</h2><table>{addresses}</table>{names}
<h2>A body for /v1/recommend</h2><pre>{body}</pre>{took}</html>"""
