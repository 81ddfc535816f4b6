"""What the server keeps: rows in a database, and sealed or encrypted files in a folder."""
