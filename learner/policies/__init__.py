"""Published policies: which versions there are, how readers wait for new ones, and which become opponents."""
