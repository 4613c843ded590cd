"""The database of record: schema, migration, reading and writing."""
