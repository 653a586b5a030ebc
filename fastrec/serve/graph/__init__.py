"""Build one ONNX graph of columns, features, nets and a stack.

``builder.py`` collects nodes. ``tensor.py`` has a tensor that writes nodes instead of computing, so that the code of
training features writes the graph too; ``columns.py`` gives such tensors to generators as a table's columns.
"""
