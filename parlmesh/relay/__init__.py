"""A relay hands policies on within a site: fetched from the learner once, held by their digest."""
