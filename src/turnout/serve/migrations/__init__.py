"""How the tables came to be, step by step; Alembic plays the steps that a database lacks."""
