"""Models in forms that others read: an ONNX file, a folder for a hub."""
