"""How columns, features, nets and stacks become nodes of one ONNX graph.

``builder.py`` collects nodes; ``tensor.py`` is a tensor that writes nodes instead of computing, so that the code that
made the training's features makes the graph too; ``columns.py`` gives generators such tensors as a table's columns.
"""
