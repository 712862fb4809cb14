"""The learner as a program sees it: policies, pauses, federated rounds, and experience of the program's own."""
