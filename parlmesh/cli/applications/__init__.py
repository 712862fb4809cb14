"""Commands of what stands on the platform: worlds, games, meshes, loops, studies."""
