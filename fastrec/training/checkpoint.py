"""``Checkpoint``: a training that was killed goes on where it was, and ends with the same weights."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fastai.callback.core import Callback, CancelEpochException
from fastai.callback.training import GradientAccumulation
from torch import nn

from fastrec._core import ranks
from fastrec._core.leftovers import remove, remove_leftovers
from fastrec.errors import DataError, MissingFileError
from fastrec.table import load_state, save_state
from fastrec.training.checkpoint_state import (
    callback_states,
    fingerprint,
    gradients,
    loader_state,
    optimizer_state,
    plain,
    random_state,
    records,
    set_callback_states,
    set_gradients,
    set_loader_state,
    set_metrics,
    set_optimizer_state,
    set_random_of_rank,
    set_random_state,
    set_records,
)
from fastrec.training.stop_on_nan import StopOnNaN

__all__ = ["Checkpoint", "load_checkpoint"]

_LOWER_IS_BETTER = ("loss", "error", "mse", "mae")


class Checkpoint(Callback):
    """Saves the last state of a training, and the best; a killed training goes on from the last.

    ``learn.fit_one_cycle(5, 1e-2, cbs=Checkpoint('runs/a'))``, run again with the same data and settings after it was
    killed, continues where it was last saved and ends with the same weights, to the bit on one kind of device: weights,
    optimizer, schedule, the order of batches, random numbers, what the Recorder holds, and the state of fastai's
    callbacks go on. A callback of your own that changes as it trains names its attributes (numbers, text, tensors, and
    lists and dicts of these) in ``checkpointed = ('name', …)``. Run again after its end, it is not trained anew.

    A state is a folder of JSON and safetensors, without pickle; it is written beside the last one, which goes
    afterwards, so that one is whole at any time.

    Where several processes train together (``fastrec.scale.distributed``) rank 0 saves and all take the state up, from
    a folder that all can read. It goes on on another number of processes as well: at the end of an epoch where it was
    left; within one, that epoch begins again, as its rows are shared out otherwise.

    Args:
        folder: where to; made if need be. One folder for one training.
        every: batches between two saves; None: after every epoch. The start is saved, too.
        keep_best: column of the Recorder's table (``'valid_loss'``, a metric) by which the best epoch's weights are
            kept as well.
        lower: whether a lower value is a better one; None: if the name holds loss, error, mse or mae.

    Raises:
        DataError: ``every`` below 1; the folder's training is another one; ``keep_best`` names no column; or several
            processes train together, and gradients are accumulated.
        WriteError: the file system refused.
    """

    order = 95  # after all that changes a training's state

    def __init__(
        self, folder: str | Path, *, every: int | None = None, keep_best: str | None = None, lower: bool | None = None
    ) -> None:
        super().__init__()
        if every is not None and every < 1:
            raise DataError(f"a checkpoint every {every} batches", remedy="Give every=1 or more, or None")
        self.folder, self.every, self.keep_best = Path(folder), every, keep_best
        self.lower = any(w in (keep_best or "") for w in _LOWER_IS_BETTER) if lower is None else lower
        self._on = False

    def _trains(self) -> bool:
        return not self.learn.lock.locked() and not hasattr(self.learn, "lr_finder")

    @property
    def _live(self) -> bool:
        return self._on and self._trains()

    # ---- the training's course

    def before_fit(self) -> None:
        """Load the last state, or save the first."""
        learn = self.learn
        if not self._trains():
            return
        self._on = True
        if ranks.world_size() > 1 and any(isinstance(cb, GradientAccumulation) for cb in learn.cbs):
            raise DataError(
                "a checkpoint does not keep what several processes have accumulated",
                remedy="Leave out Checkpoint or GradientAccumulation, or train in one process",
            )
        self._mute: dict[Any, bool] = {}
        self._resumed: dict[str, Any] | None = None
        self._begin: dict[str, Any] | None = None
        self._offset, self._best, self._other_ranks = 0, None, False
        self._print = fingerprint(learn)
        self._column = self._column_of_best()
        found = ranks.on_first_rank(lambda: _newest(self.folder, "last"), "looking for a checkpoint")
        if found is None:
            self._save(0, 0)
            return
        with _named_where_absent(found):
            state = load_state(found)
        # Without this rank 0 might remove the state before another rank has read it.
        ranks.agree(True, "checkpoint")  # all have read it: rank 0 may replace it
        self._resume(state, found)

    def before_epoch(self) -> None:
        """Skip epochs that are over."""
        if self._live and self._resumed is not None and self.learn.epoch < self._resumed["epoch"]:
            self._mute = {cb: cb.run for cb in self.learn.cbs if cb is not self}
            for cb in self._mute:
                cb.run = False
            raise CancelEpochException

    def before_train(self) -> None:
        """Resume the epoch at its last saved batch."""
        if not self._live:
            return
        learn, resumed, self._offset = self.learn, self._resumed, 0
        now = {"random": random_state(), "loader": loader_state(learn.dl)}
        self._begin, self._resumed = now, None
        if resumed is not None:
            learn.train_iter = resumed["train_iter"]
            if resumed["batch"] and self._other_ranks:
                learn.train_iter -= resumed["batch"]
                self._set_random(resumed["begin"])
                resumed = None
        if resumed is None or not resumed["batch"]:
            learn.dl = _Batches(learn.dl, self)
            return
        learn.pct_train, self._offset, self._begin = resumed["pct_train"], resumed["batch"], resumed["begin"]
        set_metrics(learn, resumed["records"])
        learn.dl = _Batches(learn.dl, self, resumed)

    def before_batch(self) -> None:
        """Count the batches that were skipped."""
        if self._on and self.learn.training:
            self.learn.iter += self._offset

    def batch_done(self, done: int) -> None:
        """Save after a training batch, if it is time.

        Args:
            done: how many of the epoch's batches are over.
        """
        if self.every is not None and self.learn.train_iter % self.every == 0:
            self._save(self.learn.epoch, done)

    def after_epoch(self) -> None:
        """Save the epoch's end, and the weights if they are the best."""
        if not self._live:
            return
        learn = self.learn
        if self._mute:
            for cb, run in self._mute.items():
                cb.run = run
            self._mute = {}
            if self._resumed["epoch"] == learn.epoch + 1:
                self._set_random(self._resumed["now"])
            return
        if self._column is not None:
            self._keep_best()
        if learn.epoch + 1 < learn.n_epoch:
            self._save(learn.epoch + 1, 0)

    def after_fit(self) -> None:
        """Save the final state."""
        if not self._live:
            return
        if not (self._resumed and self._resumed["done"]):
            self._save(self.learn.n_epoch, 0, done=True)
        self._on = False

    # ---- saving and taking up

    def _save(self, epoch: int, batch: int, *, done: bool = False) -> None:
        learn = self.learn
        for cb in learn.cbs:
            if isinstance(cb, StopOnNaN):
                cb.check()  # a spoilt state must not take a sound one's place
        if not ranks.is_first():
            return
        loss = learn.loss_func.state_dict() if isinstance(learn.loss_func, nn.Module) else {}
        now = {"random": random_state(), "loader": loader_state(learn.dls.train)}
        state = {
            "fingerprint": self._print,
            "epoch": epoch,
            "batch": batch,
            "done": done,
            "train_iter": learn.train_iter,
            "pct_train": float(learn.pct_train),
            "model": plain(learn.model.state_dict(), "the model"),
            "loss": plain(loss, "the loss"),
            "optimizer": optimizer_state(learn.opt),
            "gradients": gradients(learn.model),
            "now": now,
            "begin": self._begin if batch else None,
            "records": records(learn),
            "callbacks": callback_states(learn),
            "best": self._best,
        }
        _replace(self.folder, "last", state)

    def _resume(self, state: dict[str, Any], file: Path) -> None:
        learn = self.learn
        self._other_ranks = _check_same(state["fingerprint"], self._print, file)
        set_callback_states(learn, state["callbacks"])  # refuses others
        learn.model.load_state_dict(state["model"])
        if state["loss"]:
            learn.loss_func.load_state_dict(state["loss"])
        set_optimizer_state(learn.opt, state["optimizer"])
        set_gradients(learn.model, state["gradients"])
        set_records(learn, state["records"])
        self._best, self._resumed = state["best"], state
        if state["epoch"] == 0 and not state["batch"]:
            self._set_random(state["now"])
        if state["batch"] and self._other_ranks:
            warnings.warn(
                f"the training in {self.folder} was left within epoch {state['epoch']} by another number of processes: "
                "that epoch begins again",
                UserWarning,
                stacklevel=2,
            )
        if state["done"]:
            warnings.warn(
                f"the training in {self.folder} is complete: its weights were loaded, nothing is trained. "
                "Give another folder to train again.",
                UserWarning,
                stacklevel=2,
            )

    def _set_random(self, state: dict[str, Any]) -> None:
        set_random_of_rank(state["random"])
        set_loader_state(self.learn.dls.train, state["loader"])

    # ---- the best

    def _column_of_best(self) -> int | None:
        if self.keep_best is None:
            return None
        names = list(self.learn.recorder.metric_names)[1:]
        if self.keep_best not in names:
            raise DataError(f"there is no {self.keep_best!r} to keep the best of", remedy=f"Give one of {names}")
        return names.index(self.keep_best)

    def _keep_best(self) -> None:
        value = self.learn.recorder.values[-1][self._column]
        value = None if value is None else float(value)
        if value is None or value != value:
            return
        best = None if self._best is None else self._best["value"]
        if best is None or (value < best if self.lower else value > best):
            self._best = {"name": self.keep_best, "value": value, "epoch": self.learn.epoch}
            weights = plain(self.learn.model.state_dict(), "the model")
            if ranks.is_first():
                _replace(self.folder, "best", {**self._best, "model": weights})


class _Batches:
    """A loader's batches from a given one on; work after a batch is complete when the next is requested."""

    def __init__(self, loader: Any, checkpoint: Checkpoint, resumed: dict[str, Any] | None = None) -> None:
        self.loader, self.checkpoint, self.resumed = loader, checkpoint, resumed

    def __len__(self) -> int:
        return len(self.loader)

    def __getattr__(self, name: str) -> Any:
        if name == "loader":  # while it is being copied
            raise AttributeError(name)
        return getattr(self.loader, name)

    def __iter__(self) -> Iterator[Any]:
        done, batches = 0, None
        if self.resumed is not None:
            done, batches = self.resumed["batch"], self._skipped()
        for batch in self.loader if batches is None else batches:
            yield batch
            done += 1
            self.checkpoint.batch_done(done)

    def _skipped(self) -> Iterator[Any]:
        """Return the batches from the resumed one on, after drawing the epoch's order as before."""
        begin, first = self.resumed["begin"], self.resumed["batch"]
        set_random_state(begin["random"])
        set_loader_state(self.loader, begin["loader"])
        if hasattr(type(self.loader), "batches_from"):
            batches = self.loader.batches_from(first)
        else:
            batches = iter(self.loader)
            for _ in range(first):
                next(batches, None)
        set_random_of_rank(self.resumed["now"]["random"])
        return batches


def load_checkpoint(folder: str | Path, model: nn.Module, *, best: bool = True) -> dict[str, Any]:
    """Load the weights that a ``Checkpoint`` saved into a model.

    Args:
        folder: the checkpoint's.
        model: a model with the same parameters.
        best: the best epoch's weights; False: the last ones.

    Returns:
        Of the best ``name``, ``value`` and ``epoch``; of the last ``epoch`` and ``batch``: how many are over.

    Raises:
        MissingFileError: there is none.
        UnreadableFileError: it is damaged.
        DataError: the model has other parameters.
    """
    found = _newest(Path(folder), "best" if best else "last")
    if found is None:
        raise MissingFileError(
            f"there is no checkpoint of the {'best' if best else 'last'} state",
            file=folder,
            remedy="Train with Checkpoint(folder, keep_best='valid_loss')" if best else "Train with Checkpoint(folder)",
        )
    state = load_state(found)
    try:
        model.load_state_dict(state["model"])
    except RuntimeError as error:
        raise DataError(str(error), file=found, remedy="Make the model as it was made for the training") from error
    return {k: state[k] for k in (("name", "value", "epoch") if best else ("epoch", "batch"))}


def _numbered(folder: Path, kind: str) -> list[tuple[int, Path]]:
    found = [(p.name.removeprefix(f"{kind}-"), p) for p in folder.glob(f"{kind}-*")]
    return sorted((int(number), p) for number, p in found if number.isdigit())


def _newest(folder: Path, kind: str) -> Path | None:
    found = _numbered(folder, kind)
    return found[-1][1] if found else None


def _replace(folder: Path, kind: str, state: dict[str, Any]) -> None:
    """Save a state under the next number, then remove earlier and incomplete ones."""
    before = _numbered(folder, kind)
    save_state(folder / f"{kind}-{before[-1][0] + 1 if before else 1:06d}", state)
    for _, old in before:
        remove(old)
    remove_leftovers(folder)


@contextmanager
def _named_where_absent(file: Path) -> Iterator[None]:
    """Name the rank whose machine does not see the checkpoint."""
    try:
        yield
    except MissingFileError as error:
        if ranks.is_first():
            raise
        raise MissingFileError(
            f"rank {ranks.rank()} cannot see the checkpoint that rank 0 sees",
            file=file,
            remedy="Give a folder that all machines share",
        ) from error


_OF_RANKS = ("ranks", "batches", "batch size")  # what may be another on another number of processes


def _check_same(was: dict[str, Any], now: dict[str, Any], file: Path) -> bool:
    """Refuse another training; return whether the number of processes differs."""
    before, after = (p.get("ranks", 1) for p in (was, now))
    passed = _OF_RANKS if before != after else ("ranks",)
    other = [k for k in dict.fromkeys([*was, *now]) if k not in passed and was.get(k) != now.get(k)]
    if not other:
        return before != after
    told = []
    for key in other:
        a, b = was.get(key), now.get(key)
        if isinstance(a, dict) and isinstance(b, dict):
            part = next(k for k in dict.fromkeys([*a, *b]) if a.get(k) != b.get(k))
            key, a, b = f"{key}: {part}", a.get(part), b.get(part)
        told.append(f"{key} was {a} and is {b}")
    raise DataError(
        f"the checkpoint is of another training ({'; '.join(told)})",
        file=file,
        remedy="Train with the same data and settings as before, or give another folder",
    )
