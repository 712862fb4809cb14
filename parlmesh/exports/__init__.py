"""Exports models to ONNX files and folders for model hubs."""
