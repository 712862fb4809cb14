"""Which task comes next: the queue, its classes, shares of namespaces, and what is accepted into it."""
