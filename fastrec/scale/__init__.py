"""When one machine or one device is too small: Dask frames, several processes, tables larger than a device."""

__all__: list[str] = []
