import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from fastrec.competition import run_competition
from fastrec.competition.run import load_competition
from fastrec.errors import DataError, RankError
from fastrec.scale import training_on_ranks
from fastrec.training import Checkpoint
from tests._core.refusals import refused
from tests.scale import ddp_script as script

HERE = Path(__file__).parent
ENV = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ddp")
    script.rows().iloc[: script.ROWS].to_parquet(folder / "rows.parquet", row_group_size=20)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*torchrun, HERE / "ddp_script.py", folder]
    done = subprocess.run(command, env=ENV, capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stderr[-4000:]
    return [torch.load(folder / f"found{i}.pt", weights_only=False) for i in range(2)], folder


@pytest.mark.parametrize("kind", script.OPTIONS)
def test_two_ranks_follow_one_process_step_by_step(found, kind):
    df = script.batch_by_batch(script.rows())
    alone = script.fit(script.make(script.loaders(df, 2 * script.BS), kind))
    first, second = (f[kind] for f in found[0])
    assert first["losses"] == second["losses"]  # the loss of the whole batch, on every rank
    assert first["losses"] == pytest.approx(alone["losses"], rel=2e-5)
    assert len(alone["losses"]) == 8
    for name, value in alone["weights"].items():
        assert torch.equal(first["weights"][name], second["weights"][name]), name
        torch.testing.assert_close(first["weights"][name], value, rtol=1e-3, atol=2e-5)
    for one, other in zip(first["values"], alone["values"], strict=True):  # loss, accuracy, two AUCs, MRR
        assert one == pytest.approx(other, rel=1e-4)
    assert first["values"] == second["values"]


def test_tables_shared_out_to_ranks_train_as_whole_ones_and_not_before_ranks_are_joined(found):
    for f in found[0]:
        assert f["row-sharded"]["losses"] == pytest.approx(f["adamw"]["losses"], rel=2e-5)
        torch.testing.assert_close(f["row-sharded"]["preds"], f["adamw"]["preds"], rtol=1e-4, atol=1e-5)
    assert all("join_ranks" in f["early"] for f in found[0])


def test_every_rank_scores_all_rows_outside_of_a_fit(found):
    for f in found[0]:
        for kind in script.OPTIONS:
            assert len(f[kind]["preds"]) == script.VALID
            assert f[kind]["scored"][1:] == pytest.approx(f[kind]["values"][-1][2:], rel=1e-6)
            assert f[kind]["scored"][0] == pytest.approx(f[kind]["values"][-1][1], rel=1e-5)
            assert len(f[kind]["values"]) == 2
        assert f["mrr"][1] == script.VALID  # of a loader that shares its rows out, too
        assert f["shares"] == ([4, 2], 2)


@pytest.mark.parametrize("what", ["shuffled", "groups", "stream"])
def test_an_epoch_is_complete_and_disjoint_with_as_many_batches_on_each_rank(found, what):
    first, second = (f[what]["epochs"] for f in found[0])
    for one, other in zip(first, second, strict=True):
        assert len(one) == len(other)
        assert all(len(batch) for batch in (*one, *other))
        mine = [torch.cat(batches).tolist() for batches in (one, other)]
        assert sorted([*mine[0], *mine[1]]) == list(range(script.ROWS))
        if what == "groups":
            assert not {r // 5 for r in mine[0]} & {r // 5 for r in mine[1]}
    assert len(first) == 2
    assert torch.cat(first[0]).tolist() != torch.cat(first[1]).tolist()


def test_a_training_that_was_left_goes_on_to_the_same_weights(found):
    for f in found[0]:
        straight, again, _ = f["checkpoints"]
        assert again["values"] == straight["values"]
        for name, value in straight["weights"].items():
            assert torch.equal(again["weights"][name], value)


def test_one_process_goes_on_where_two_were_left(found):
    ranks, folder = found
    learn = script.make(script.loaders(script.rows(), 2 * script.BS, shuffle=True, seed=1))
    seen = []

    class Look(script.Callback):
        order = 98

        def before_train(self):
            seen.append((self.learn.epoch, script.weights(self.learn)))

    done = script.fit(learn, 3, [Checkpoint(folder / "one"), Look()])
    assert [epoch for epoch, _ in seen] == [1, 2]
    left = ranks[0]["checkpoints"][2]
    assert all(torch.equal(left[name], value) for name, value in seen[0][1].items())
    straight = ranks[0]["checkpoints"][0]
    assert done["values"][0] == straight["values"][0]  # the epoch that two ranks trained
    assert len(done["values"]) == 3
    assert len(done["losses"]) == 8


def test_an_epoch_that_two_ranks_left_begins_again_on_one(found):
    learn = script.make(script.loaders(script.rows(), 2 * script.BS, shuffle=True, seed=1))
    with pytest.warns(UserWarning, match="within epoch 1 by another number of processes: that epoch begins again"):
        done = script.fit(learn, 3, [Checkpoint(found[1] / "within")])
    assert len(done["values"]) == 3
    assert [sorted(torch.cat(e).tolist()) for e in done["epochs"][-2:]] == [list(range(script.ROWS))] * 2


def test_row_sparse_gradients_are_sent_as_rows(found):
    for f in found[0]:
        sent, batches = f["sent"]
        a_row = 8 + 4 * 4  # its number, and four floats
        assert 0 < sent["rows"] <= batches * script.BS * a_row
        assert sent["dense"] < batches * 4_000  # not a table of 20,000 rows


# ``fastrec run --ranks 2``: the nets of a run trained by processes that are started for them
RECIPE = '''
import os
import signal

from fastrec.competition import Competition
from fastrec.estimators import ConstantModel, NetModel
from fastrec.models import TabularNet
from fastrec.validate import Folds


class OwnNet(TabularNet):
    """A net that other processes only find through this file; ``DIE`` kills the second of them."""

    def forward(self, *given):
        if os.environ.get("DIE") and os.environ.get("RANK") == "1":
            os.kill(os.getpid(), signal.SIGKILL)
        return super().forward(*given)


class Tiny(Competition):
    name, task, target, ids = "tiny", "binary", "y", ("id",)

    def folds(self, found, target):
        return Folds.kfold(len(found.train), 2)

    def models(self, *, bs):
        return [NetModel("net", model=OwnNet, epochs=20, bs=bs, lr=0.02, options={"layers": [8]})]
'''


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    root = tmp_path_factory.mktemp("workspace")
    (root / "competitions" / "tiny").mkdir(parents=True)
    (root / "competitions" / "tiny" / "competition.py").write_text(RECIPE)
    rng = np.random.default_rng(0)
    df = pd.DataFrame({"id": np.arange(400), "x": rng.normal(size=400), "city": rng.choice(list("abc"), 400)})
    df["y"] = (df.x + rng.normal(size=400) > 0).astype(int)
    (root / "data").mkdir()
    df[:300].to_csv(root / "data" / "train.csv", index=False)
    df[300:].drop(columns="y").to_csv(root / "data" / "test.csv", index=False)
    return root


def test_two_ranks_write_what_one_process_writes_and_a_killed_one_ends_the_run(workspace, monkeypatch):
    recipe = load_competition(workspace / "competitions" / "tiny")
    alone = run_competition(recipe, workspace / "data", workspace / "alone", device="cpu", bs=64)
    given = {"device": "cpu", "bs": 64, "ranks": 2, "resume": True}
    monkeypatch.setenv("DIE", "yes")
    with pytest.raises(RankError, match="rank 1 by signal 9"):
        run_competition(recipe, workspace / "data", workspace / "shared", **given)
    assert not (workspace / "shared").exists()
    monkeypatch.delenv("DIE")
    shared = run_competition(recipe, workspace / "data", workspace / "shared", **given)
    files = [{str(p.relative_to(run)) for p in run.rglob("*") if p.is_file()} for run in (alone, shared)]
    blends = [{f for f in own if f.startswith("stack")} for own in files]  # another one may be chosen
    assert files[0] - blends[0] == files[1] - blends[1]
    assert json.loads((shared / "config.json").read_text())["ranks"] == 2
    assert "ranks" not in json.loads((alone / "config.json").read_text())
    predictions = [pd.read_parquet(run / "oof" / "net.parquet").iloc[:, -1] for run in (alone, shared)]
    assert np.corrcoef(*predictions)[0, 1] > 0.9
    predicted = [pd.read_csv(run / "submission.csv") for run in (alone, shared)]
    assert predicted[0].columns.tolist() == predicted[1].columns.tolist()
    assert np.corrcoef(predicted[0].iloc[:, -1], predicted[1].iloc[:, -1])[0, 1] > 0.9
    refused(DataError, "0 processes", training_on_ranks(0).__enter__)


# A process that is killed ends the others, with an error that says so
def test_a_killed_rank_ends_the_other_with_a_named_error():
    with socket.socket() as s:
        s.bind(("localhost", 0))
        port = s.getsockname()[1]
    env = {**ENV, "MASTER_ADDR": "localhost", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    command, pipes = [sys.executable, HERE / "lost_script.py"], {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    ranks = [
        subprocess.Popen(command, env={**env, "RANK": str(i), "LOCAL_RANK": str(i)}, text=True, **pipes)
        for i in range(2)
    ]
    try:
        ended = [p.communicate(timeout=120) for p in ranks]  # no launcher looks after them: rank 0 finds out itself
    finally:
        for p in ranks:
            p.kill()
    assert ranks[1].returncode == -signal.SIGKILL, ended[1]
    assert ranks[0].returncode == 1, ended[0]
    assert "RankError after 1 epochs: rank 0 of 2 has lost another one while" in ended[0][0], ended[0]
    assert "was killed" in ended[0][0]
