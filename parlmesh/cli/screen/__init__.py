"""Output for people: tables, live views, summaries and charts."""
