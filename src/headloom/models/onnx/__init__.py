"""headloom's models as ONNX graphs, which many runtimes compute."""
