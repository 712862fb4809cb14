"""Commands of the applications: worlds, games, meshes, loops, studies."""
