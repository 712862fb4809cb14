"""Published policies: their versions, which of them are kept, and which become opponents."""
