"""What is decided at the loop: who may act where and when, and which action is chosen. Does no I/O."""
