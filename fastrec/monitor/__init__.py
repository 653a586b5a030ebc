"""A model after its launch: new rows beside old ones, quality gates, retraining."""

__all__: list[str] = []
