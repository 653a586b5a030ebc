"""When one machine or one device is too small: Dask frames, several processes, tables larger than a device.

``distributed`` trains a Learner on the processes that ``torchrun`` has started (``fastrec.training`` has how).
"""

from fastrec.training.process_group import distributed

__all__ = ["distributed"]
