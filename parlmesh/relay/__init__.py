"""A relay distributes policies within a site: it fetches each from the learner once and caches it by digest."""
