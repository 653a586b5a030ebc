"""One of two processes that train together, of which the second is killed in the middle; ``test_ddp_training.py``."""

import os
import signal

import numpy as np
import pandas as pd
from fastai.callback.core import Callback

from fastrec.errors import RankError
from fastrec.scale import distributed
from fastrec.tabular import TabularFrame
from fastrec.training import rec_learner


class Die(Callback):
    def before_batch(self):
        if os.environ["RANK"] == "1" and self.learn.epoch == 1:
            os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    df = pd.DataFrame({"x": np.arange(64, dtype=np.float32), "y": np.arange(64) % 2})
    to = TabularFrame(df, [], [], ["x"], "y", splits=(range(64), []), device="cpu")
    learn = rec_learner(to.dataloaders(bs=8, device="cpu"), layers=[4])
    with learn.no_bar(), learn.no_logging(), distributed(learn, timeout=50):
        try:
            learn.fit(1000, 1e-3, cbs=Die())
        except RankError as error:
            print(f"RankError after {learn.epoch} epochs: {error}", flush=True)
            raise


if __name__ == "__main__":
    main()
