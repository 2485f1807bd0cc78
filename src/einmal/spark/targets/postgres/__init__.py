"""PostgreSQL as a target: rows and commit record in one transaction of the database. ``target`` has the theory."""
