"""Build one ONNX graph of columns, features, nets and a stack.

``GraphTensor`` writes nodes instead of computing, so that the code of training features writes the graph too.
"""
