"""One module per command of `parlmesh`."""
