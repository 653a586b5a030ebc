"""fastrec: features, loaders, nets and stacks for competition-style tabular and recommender modelling, on fastai."""

__version__ = "0.1.0"
