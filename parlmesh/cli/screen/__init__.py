"""What people see: tables, live views, summaries and charts."""
