"""The server of ONNX models on one GPU, and the node's end of the tunnel to it."""
