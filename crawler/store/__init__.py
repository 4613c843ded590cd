"""From the results stream to the tables: the bundled server, the stream, coordinators, the database."""
