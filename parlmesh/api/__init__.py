"""What a Python program trains and acts with. Stands on the fleet's processes and on the learner's services."""
