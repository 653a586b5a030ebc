"""Model repositories against Triton's own schema of ``config.pbtxt``, and against the graphs that they hold."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
import xgboost as xgb

from fastrec.errors import DataError, MissingFileError, UnreadableFileError, WriteError
from fastrec.serve import write_triton


@pytest.fixture(scope="module")
def parse():
    """Reads a ``config.pbtxt`` by Triton's own schema, loaded by its path: the package of it needs grpcio."""
    pytest.importorskip("google.protobuf")
    client = pytest.importorskip("tritonclient")
    from google.protobuf import text_format

    path = Path(client.__file__).parent / "grpc" / "model_config_pb2.py"
    spec = importlib.util.spec_from_file_location("model_config_pb2", path)
    schema = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(schema)

    def parse(folder: Path):
        return text_format.Parse((folder / "config.pbtxt").read_text(encoding="utf-8"), schema.ModelConfig())

    parse.type = lambda number: schema.DataType.Name(number)
    return parse


def tensor(name: str, kind: str, width: int | None = None) -> dict:
    return {"name": name, "type": kind, "width": width}


def part(name: str, inputs: list, outputs: list, *, kind: str = "onnx", **more: object) -> dict:
    file = f"parts/{name}.{'ubj' if kind == 'xgboost' else 'onnx'}"
    return {"name": name, "kind": kind, "file": file, "inputs": inputs, "outputs": outputs, **more}


MATRIX, CODES = tensor("matrix", "float32", 3), tensor("codes", "int64", 2)
MARGIN, SAID = tensor("margin", "float32"), tensor("said", "float32")
FILES = ["features.onnx", "features.onnx.data"]
PARTS = [
    part("features", [tensor("città", "string"), tensor("id", "int64")], [MATRIX, CODES], files=FILES),
    part("forest", [MATRIX], [tensor("margin", "float32", 1)], kind="xgboost"),
    part("net", [CODES], [SAID]),
    part("stack", [MARGIN, SAID], [tensor("score", "float64")]),
]


def export(folder: Path, *, lists: str | None = None, parts: list | None = None, width: int = 1) -> Path:
    """An export's folder, but with other bytes for the files that are only copied."""
    inputs = [{"name": "città", "type": "string"}, {"name": "id", "type": "int64"}, {"name": "x", "type": "float64"}]
    model = {"file": "model.onnx", "files": ["model.onnx", "model.onnx.data"]}
    outputs = [{"name": "score", "type": "float64", "width": width}]
    about = {"format": 1, "model": model, "inputs": [*inputs, {"name": "ok", "type": "bool"}], "outputs": outputs}
    about |= {"list": lists, "parts": parts}
    (folder / "parts").mkdir(parents=True)
    names = ["model.onnx", "model.onnx.data", "parts/forest.ubj", "parts/net.onnx", "parts/stack.onnx"]
    for name in [*names, *(f"parts/{n}" for n in FILES)]:
        (folder / name).write_bytes(name.encode())
    (folder / "serving.json").write_text(json.dumps(about, ensure_ascii=False), encoding="utf-8")
    return folder


def test_one_model_that_joins_requests(tmp_path, parse):
    options = {"max_batch_size": 512, "preferred_sizes": [64, 256], "max_delay_us": 500}
    (made,) = write_triton(export(tmp_path / "export"), tmp_path / "repo", name="rank", **options)
    config = parse(made)
    assert (made.name, config.name, config.platform, config.max_batch_size) == ("rank", "rank", "onnxruntime_onnx", 512)
    assert [(t.name, parse.type(t.data_type), list(t.dims)) for t in config.input] == [
        ("città", "TYPE_STRING", [1]), ("id", "TYPE_INT64", [1]), ("x", "TYPE_FP64", [1]), ("ok", "TYPE_BOOL", [1])
    ]  # fmt: skip
    assert all(t.HasField("reshape") and not t.reshape.shape for t in (*config.input, *config.output))
    assert list(config.dynamic_batching.preferred_batch_size) == [64, 256]
    assert config.dynamic_batching.max_queue_delay_microseconds == 500
    assert [(g.kind, g.count) for g in config.instance_group] == [(config.instance_group[0].KIND_CPU, 1)]
    assert not config.parameters
    assert not config.HasField("optimization")
    assert (made / "1" / config.default_model_filename).read_bytes() == b"model.onnx"
    assert (made / "1" / "model.onnx.data").read_bytes() == b"model.onnx.data"
    config = parse(write_triton(export(tmp_path / "wide", width=4), tmp_path / "repo", name="wide")[0])
    assert list(config.output[0].dims) == [4]
    assert not config.output[0].HasField("reshape")


def test_instances_and_devices(tmp_path, parse):
    source = export(tmp_path / "export", parts=PARTS)
    made = {p.name: parse(p) for p in write_triton(source, tmp_path / "cpu", name="m", instances=3)}
    assert made["m"].parameters["intra_op_thread_count"].string_value == "1"
    assert made["m_net"].instance_group[0].count == 3
    for device, names in (("gpu", ["cuda"]), ("tensorrt", ["tensorrt", "cuda"])):
        made = {p.name: parse(p) for p in write_triton(source, tmp_path / device, name="m", device=device)}
        kinds = {n: c.instance_group[0].kind for n, c in made.items() if c.instance_group}
        group = made["m"].instance_group[0]
        assert kinds == {
            "m": group.KIND_CPU, "m_features": group.KIND_CPU,  # they read text
            "m_forest": group.KIND_GPU, "m_net": group.KIND_GPU, "m_stack": group.KIND_GPU,
        }  # fmt: skip
        found = made["m_net"].optimization.execution_accelerators.gpu_execution_accelerator
        assert [a.name for a in found] == names
        assert found[-1].parameters["use_tf32"] == "0"
        assert not made["m_features"].HasField("optimization")
        assert not made["m_forest"].HasField("optimization")


@pytest.mark.parametrize(("lists", "dynamic"), [(None, True), ("id", True), (None, False)])
def test_parts_one_after_the_other(lists, dynamic, tmp_path, parse):
    source = export(tmp_path / "export", lists=lists, parts=PARTS)
    folders = {p.name: p for p in write_triton(source, tmp_path / "repo", name="m", dynamic=dynamic)}
    made = {n: parse(p) for n, p in folders.items()}
    assert list(made) == ["m", "m_features", "m_forest", "m_net", "m_stack", "m_ensemble"]
    one, whole = made["m"], made["m_ensemble"]
    if lists is not None or not dynamic:  # a request is a batch
        assert (one.max_batch_size, one.HasField("dynamic_batching")) == (0, False)
        assert {(*t.dims, *t.reshape.shape) for t in (*one.input, *one.output)} == {(-1, 1, -1)}
    assert (whole.platform, whole.max_batch_size) == ("ensemble", 4096 if dynamic and lists is None else 0)
    assert not whole.instance_group
    assert made["m_features"].max_batch_size == whole.max_batch_size
    assert bool(made["m_net"].max_batch_size) == dynamic  # it sees no lists
    assert {t.name for t in whole.input} == {"città", "id"}
    for step in whole.ensemble_scheduling.step:
        assert step.model_version == -1
        assert set(step.input_map) == {t.name for t in made[step.model_name].input}
        assert set(step.output_map) == {t.name for t in made[step.model_name].output}
    assert sorted(p.name for p in (folders["m_features"] / "1").iterdir()) == ["features.onnx.data", "model.onnx"]
    assert sorted(p.name for p in folders["m_ensemble"].iterdir()) == ["1", "config.pbtxt"]  # Triton asks for a version


def test_a_forest_is_run_by_fil(tmp_path, parse):
    five = tensor("margin", "float32", 5)
    for parts, width in ((PARTS, 1), ([PARTS[0], {**PARTS[1], "outputs": [five]}, {**PARTS[3], "inputs": [five]}], 5)):
        source = export(tmp_path / f"export{width}", parts=parts)
        folder = {p.name: p for p in write_triton(source, tmp_path / f"repo{width}", name="m")}["m_forest"]
        config = parse(folder)
        assert (config.backend, config.platform, config.max_batch_size) == ("fil", "", 4096)
        ends = [(t.name, parse.type(t.data_type), list(t.dims)) for t in (*config.input, *config.output)]
        assert ends == [("input__0", "TYPE_FP32", [3]), ("output__0", "TYPE_FP32", [width])]
        said = {n: p.string_value for n, p in config.parameters.items()}
        kinds = dict.fromkeys(("output_class", "is_classifier", "predict_proba"), str(width > 1).lower())
        assert said == {"model_type": "xgboost_ubj", **kinds}
        assert (folder / "1" / "xgboost.ubj").read_bytes() == b"parts/forest.ubj"


ODD = [
    (PARTS[1:], r"forest reads matrix .* nothing before gives it"),
    (PARTS[:2], "no part gives score"),
    ([PARTS[0], {**PARTS[1], "outputs": [tensor("margin", "float64", 1)]}], "float32 matrices"),
    ([{**PARTS[0], "kind": "python"}], "unknown kind"),
    ([{**PARTS[0], "outputs": [tensor("when", "date")]}], "no type 'date'"),
]


@pytest.mark.parametrize(("parts", "says"), ODD, ids=lambda v: v if isinstance(v, str) else "")
def test_parts_that_do_not_fit_are_named(tmp_path, parts, says):
    with pytest.raises(DataError, match=says):
        write_triton(export(tmp_path / "export", parts=parts), tmp_path / "repo", name="m")
    assert not (tmp_path / "repo").exists()


def test_what_is_no_export_is_named(tmp_path):
    source, odd = export(tmp_path / "export"), tmp_path / "odd"
    (source / "model.onnx.data").unlink()
    odd.mkdir()
    (odd / "serving.json").write_text('{"inputs": 3}')
    for folder, name, error, says in (
        (tmp_path, "m", MissingFileError, "no such file"),
        (odd, "m", UnreadableFileError, "fastrec export writes"),
        (source, "m", MissingFileError, "not complete"),
        (source, "../m", DataError, "cannot be called"),
    ):
        with pytest.raises(error, match=says):
            write_triton(folder, tmp_path / "repo", name=name)


def test_other_folders_stay_as_they_are(tmp_path):
    source = export(tmp_path / "export")
    mine = tmp_path / "repo" / "mine"
    mine.mkdir(parents=True)
    (mine / "notes.txt").write_text("keep")
    with pytest.raises(WriteError, match="holds other things"):
        write_triton(source, tmp_path / "repo", name="mine")
    write_triton(source, tmp_path / "repo", name="m")
    write_triton(source, tmp_path / "repo", name="m", max_batch_size=8)  # an earlier one is replaced
    assert "max_batch_size: 8" in (tmp_path / "repo" / "m" / "config.pbtxt").read_text(encoding="utf-8")
    assert (mine / "notes.txt").read_text() == "keep"


def run_as_triton(folder: Path, config, given: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What a model with a file says of a request, its tensors reshaped as its configuration has it."""
    import onnxruntime as ort

    def reshaped(values: np.ndarray, tensor) -> np.ndarray:
        dims = [len(values), *tensor.dims] if config.max_batch_size else tensor.dims
        assert [max(d, n * (d < 0)) for d, n in zip(dims, values.shape, strict=True)] == [*values.shape], tensor.name
        if not tensor.HasField("reshape"):
            return values
        rows = [len(values)] if config.max_batch_size else []
        return values.reshape([*rows, *tensor.reshape.shape])

    path = folder / "1" / config.default_model_filename
    if config.backend == "fil":
        said = xgb.Booster(model_file=path).inplace_predict(given["input__0"], validate_features=False)
        return {"output__0": said.reshape(len(said), -1)}
    feeds = {t.name: reshaped(given[t.name], t) for t in config.input}
    said = ort.InferenceSession(str(path)).run([t.name for t in config.output], feeds)
    return {t.name: v.reshape(len(v), -1) for t, v in zip(config.output, said, strict=True)}


def by_ensemble(export: Path, repo: Path, values: dict[str, np.ndarray], parse, **options) -> np.ndarray:
    made = {p.name: p for p in write_triton(export, repo, name="m", **options)}
    known = {name: v if v.ndim > 1 else v[:, None] for name, v in values.items()}
    for step in parse(made["m_ensemble"]).ensemble_scheduling.step:
        given = {key: known[value] for key, value in step.input_map.items()}
        said = run_as_triton(made[step.model_name], parse(made[step.model_name]), given)
        known |= {step.output_map[name]: values for name, values in said.items()}
    return known["score"][:, 0]
