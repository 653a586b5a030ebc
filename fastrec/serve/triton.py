"""``write_triton``: an exported run as a model repository of NVIDIA's Triton Inference Server.

Shapes: Triton's tensors have a dimension beside the batch. Requests send ``[n, 1]`` for an input ``[n]``, and
``reshape`` removes the 1 (Triton's user guide, "Model configuration", "Reshape").

Batches: Triton joins requests if ``max_batch_size`` is above 0. A model that reads the column of lists would mix the
lists of two requests, so there a request is a batch: ``max_batch_size: 0``, and rows are a dimension. (To leave out
``dynamic_batching`` is not enough: Triton adds it to models of onnxruntime.)
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from fastrec._core.atomic import atomic_folder, check_replaceable, is_plain_name
from fastrec.errors import DataError, MissingFileError, UnreadableFileError
from fastrec.serve.session import FILE, read_about


class Enum(str):
    """The name of a constant, written without quotes."""

    __slots__ = ()


def pbtxt(fields: Mapping[str, Any], indent: str = "") -> str:
    """Write fields as protocol-buffer text: numbers, bools, strings, ``Enum``, messages (mappings), lists, or None."""

    def scalar(value: Any) -> str:  # numbers, bools and quoted text are written as in JSON
        return str(value) if isinstance(value, Enum) else json.dumps(value, ensure_ascii=False)

    lines = []
    for name, value in fields.items():
        if isinstance(value, list) and not any(isinstance(v, Mapping) for v in value):
            lines.append(f"{indent}{name}: [{', '.join(map(scalar, value))}]")
            continue
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, Mapping):
                lines += [f"{indent}{name} {{", *pbtxt(one, f"{indent}  ").splitlines(), f"{indent}}}"]
            elif one is not None:
                lines.append(f"{indent}{name}: {scalar(one)}")
    return "".join(f"{line}\n" for line in lines)


Device = Literal["cpu", "gpu", "tensorrt"]
_TYPES = {"int64": "INT64", "float64": "FP64", "float32": "FP32", "string": "STRING", "bool": "BOOL"}
_CONFIG = "config.pbtxt"


def write_triton(
    export_dir: str | Path,
    out: str | Path,
    *,
    name: str,
    max_batch_size: int = 4096,
    dynamic: bool = True,
    preferred_sizes: Sequence[int] = (),
    max_delay_us: int = 0,
    instances: int = 1,
    device: Device = "cpu",
) -> list[Path]:
    """Write a Triton model repository of an exported run.

    ``name`` is the whole graph as one model of onnxruntime. If the export has parts, ``name_PART`` is one of them and
    ``name_ensemble`` passes tensors between them by name. ``serving.json`` lists parts in running order::

        {"name": "forest", "kind": "xgboost", "file": "parts/forest.ubj", "files": ["forest.ubj"],
         "inputs": [{"name": "matrix", "type": "float32", "width": 60}],
         "outputs": [{"name": "margin", "type": "float32", "width": 1}]}

    ``kind`` is ``onnx`` or ``xgboost`` (one float32 matrix to another, by the FIL backend). A ``width`` of null means
    ``[n]``, a number ``[n, width]``, -1 as wide as the request. ``files`` includes separate weights.

    Args:
        export_dir: an export of ``fastrec export``.
        out: the repository; models of these names in it are replaced, others stay.
        name: the model's name.
        max_batch_size: largest number of rows in a batch.
        dynamic: join waiting requests; models that read lists never join them.
        preferred_sizes: sizes at which a batch does not wait for more.
        max_delay_us: how long a request may wait for others, microseconds.
        instances: number of parallel instances of the model; with several, each has one CPU thread.
        device: ``'gpu'``: CUDA without TF32, which would change scores; ``'tensorrt'``: TensorRT. Parts that read text
            run on the CPU.

    Returns:
        The models' folders.

    Raises:
        MissingFileError, UnreadableFileError: there is no export, or a part of it is gone.
        DataError: a name is no name of a folder, or parts do not fit together.
        WriteError: a folder of such a name is no model of Triton.
    """
    export_dir, out = Path(export_dir), Path(out)
    if not is_plain_name(name):
        raise DataError(f"a model of Triton cannot be called {name!r}", remedy="Give a name without / and the like")
    about = _read(export_dir)
    batching = {"preferred_batch_size": list(preferred_sizes) or None, "max_queue_delay_microseconds": max_delay_us}
    how = _TritonOptions(max_batch_size, dynamic, batching, instances, device, about.get("list"))
    models = {name: {"kind": "onnx", **about["model"], "inputs": about["inputs"], "outputs": about["outputs"]}}
    parts = about.get("parts") or []
    models |= {f"{name}_{part['name']}": part for part in parts}
    configs = {n: _config(n, one, how) for n, one in models.items()}
    if parts:
        configs[f"{name}_ensemble"] = _ensemble(name, about, parts, how)
    for folder in configs:
        check_replaceable(out / folder, _CONFIG)
    for folder, config in configs.items():
        with atomic_folder(out / folder) as temporary:
            version = temporary / "1"
            version.mkdir()
            for source, target in _files(models.get(folder), export_dir):
                shutil.copyfile(source, version / target)
            (temporary / _CONFIG).write_text(pbtxt(config), encoding="utf-8")
    return [out / folder for folder in configs]


@dataclass(frozen=True)
class _TritonOptions:
    """Options of all models; ``lists``: the input with the lists' ids, None without lists."""

    max_batch_size: int
    dynamic: bool
    batching: dict[str, Any]
    instances: int
    device: Device
    lists: str | None

    def joins(self, model: Mapping[str, Any]) -> bool:
        return self.dynamic and not any(t["name"] == self.lists for t in model["inputs"])

    def on_cpu(self, model: Mapping[str, Any]) -> bool:
        return self.device == "cpu" or any(t["type"] == "string" for t in model["inputs"])


def _read(export_dir: Path) -> dict[str, Any]:
    about, path = read_about(export_dir), export_dir / FILE
    try:
        about["inputs"] = [t for t in about["inputs"] if t.get("graph", True)]  # others feed outside features
        for tensor in about["inputs"]:
            tensor.setdefault("width", -1 if tensor.get("events") else None)
        if about.get("events_count"):
            about["inputs"].append({"name": about["events_count"], "type": "int64", "width": None})
        for part in (about, *(about.get("parts") or ())):
            for tensor in (*part["inputs"], *part["outputs"]):
                tensor.setdefault("width", None)
                if tensor["type"] not in _TYPES:
                    raise DataError(f"Triton has no type {tensor['type']!r}", file=path, column=tensor["name"])
        for output in about["outputs"]:  # of the graph: a width of 1 is [n]
            output["width"] = None if output["width"] == 1 else output["width"]
        return about
    except (KeyError, TypeError, AttributeError) as error:
        why = "the file is not what fastrec export writes"
        raise UnreadableFileError(why, file=path, remedy="Write it again") from error


def _files(model: Mapping[str, Any] | None, export_dir: Path) -> list[tuple[Path, str]]:
    if model is None:
        return []
    main = export_dir / model["file"]
    sources = [main.parent / n for n in model.get("files") or [main.name]]
    gone = next((p for p in sources if not p.is_file()), None)
    if gone is not None:
        raise MissingFileError("the export is not complete", file=gone, remedy="Write it again: fastrec export")
    usual = "model.onnx" if model["kind"] == "onnx" else "xgboost.ubj"
    return [(p, usual if p == main else p.name) for p in sources]  # weights are called by their own names in the graph


def _config(name: str, model: Mapping[str, Any], how: _TritonOptions) -> dict[str, Any]:
    on_cpu, joins = how.on_cpu(model), how.joins(model)
    config: dict[str, Any] = {"name": name}
    if model["kind"] == "onnx":
        config |= {"platform": "onnxruntime_onnx", "default_model_filename": "model.onnx"}
        config["max_batch_size"] = how.max_batch_size if joins else 0
        for side in ("input", "output"):
            config[side] = [_tensor(t, whole=not joins, reshaped=True) for t in model[f"{side}s"]]
    elif model["kind"] == "xgboost":
        config |= {"backend": "fil", "default_model_filename": "xgboost.ubj", "max_batch_size": how.max_batch_size}
        (rows,), (said,) = model["inputs"], model["outputs"]
        if (rows["type"], said["type"]) != ("float32", "float32") or rows["width"] is None:
            raise DataError(f"{name}: trees take and give float32 matrices here", remedy="Cast them in the part before")
        for side, t in (("input", rows), ("output", said)):
            config[side] = [_tensor({**t, "name": f"{side}__0"}, whole=False, reshaped=False)]
        classes = (said["width"] or 1) > 1
        # 'output_class' is called 'is_classifier' by later versions, which pass over the former
        about = {"output_class": classes, "is_classifier": classes, "predict_proba": classes}
        config["parameters"] = _parameters(model_type="xgboost_ubj", **about)
    else:
        raise DataError(f"{name} is of an unknown kind, {model['kind']!r}", remedy="Kinds are onnx and xgboost")
    config["instance_group"] = {"count": how.instances, "kind": Enum("KIND_CPU" if on_cpu else "KIND_GPU")}
    if joins:
        config["dynamic_batching"] = how.batching
    if model["kind"] == "onnx" and not on_cpu:
        kinds = [{"name": "cuda", "parameters": [{"key": "use_tf32", "value": "0"}]}]  # exact
        if how.device == "tensorrt":
            options = {"precision_mode": "FP32", "trt_engine_cache_enable": "1"}
            kinds.insert(0, {"name": "tensorrt", "parameters": [{"key": n, "value": v} for n, v in options.items()]})
        config["optimization"] = {"execution_accelerators": {"gpu_execution_accelerator": kinds}}
    if model["kind"] == "onnx" and on_cpu and how.instances > 1:
        config["parameters"] = _parameters(intra_op_thread_count=1)
    return config


def _tensor(tensor: Mapping[str, Any], *, whole: bool, reshaped: bool) -> dict[str, Any]:
    """Describe a tensor as requests have it; ``whole``: with its rows as a dimension, as a request is a batch."""
    rows, width = [-1] if whole else [], tensor["width"]
    made: dict[str, Any] = {"name": tensor["name"], "data_type": Enum(f"TYPE_{_TYPES[tensor['type']]}")}
    made["dims"] = [*rows, width or 1]
    if reshaped and width is None:
        made["reshape"] = {"shape": rows}
    return made


def _parameters(**values: Any) -> list[dict[str, Any]]:
    return [
        {"key": n, "value": {"string_value": str(v).lower() if isinstance(v, bool) else str(v)}}
        for n, v in values.items()
    ]


def _ensemble(
    name: str, about: Mapping[str, Any], parts: Sequence[Mapping[str, Any]], how: _TritonOptions
) -> dict[str, Any]:
    whole = not all(how.joins(part) for part in parts)
    known = {t["name"]: _shape(t) for t in about["inputs"]}
    steps = []
    for part in parts:
        for tensor in part["inputs"]:
            if known.get(tensor["name"]) != _shape(tensor):
                why = f"the part {part['name']} reads {tensor['name']} as {_shape(tensor)}, and nothing before gives it"
                raise DataError(why, remedy="List parts in the order in which they run, with what they give")
        known |= {t["name"]: _shape(t) for t in part["outputs"]}
        maps = {}
        for side in ("input", "output"):
            names = [t["name"] for t in part[f"{side}s"]]
            keys = [f"{side}__0"] if part["kind"] == "xgboost" else names
            maps[f"{side}_map"] = [{"key": k, "value": n} for k, n in zip(keys, names, strict=True)]
        steps.append({"model_name": f"{name}_{part['name']}", "model_version": -1, **maps})
    lost = next((t["name"] for t in about["outputs"] if known.get(t["name"]) != _shape(t)), None)
    if lost is not None:
        raise DataError(f"no part gives {lost}", remedy="The last part must give the outputs of the whole")
    read = {t["name"] for part in parts for t in part["inputs"]}
    return {
        "name": f"{name}_ensemble", "platform": "ensemble", "max_batch_size": 0 if whole else how.max_batch_size,
        "input": [_tensor(t, whole=whole, reshaped=False) for t in about["inputs"] if t["name"] in read],
        "output": [_tensor(t, whole=whole, reshaped=False) for t in about["outputs"]],
        "ensemble_scheduling": {"step": steps},
    }  # fmt: skip


def _shape(tensor: Mapping[str, Any]) -> tuple[str, int]:
    return tensor["type"], tensor["width"] or 1
